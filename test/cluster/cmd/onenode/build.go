// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"

	"gpu-dra-driver/test/cluster/internal/cache"
	"gpu-dra-driver/test/cluster/internal/recipe"
)

func (f *flags) withKubernetes(version *string) *flags {
	f.StringVar(version, "kubernetes", recipe.DefaultKubernetes, "the Kubernetes version")
	return f
}

func openCache(std streams) (cache.Cache, error) {
	dir, err := cache.Dir()
	return cache.Cache{Dir: dir, Progress: std.err}, err
}

// componentsOf returns the cache, and what it holds for a version.
func componentsOf(ctx context.Context, version string, std streams) (cache.Cache, []recipe.Component, error) {
	c, err := openCache(std)
	if err != nil {
		return c, nil, err
	}
	components, err := c.Components(ctx, version)
	return c, components, err
}

// built builds missing programs and returns their directories.
func built(ctx context.Context, version string, std streams) ([]string, error) {
	c, components, err := componentsOf(ctx, version, std)
	if err != nil {
		return nil, err
	}
	return c.Build(ctx, components)
}

func build(ctx context.Context, args []string, std streams) error {
	var version, download string
	f := newFlags("build", std).withKubernetes(&version)
	f.StringVar(&download, "download", "", "download what the makers publish instead of building it: 1 from their servers, else the URL of a mirror")
	if _, err := f.parse(args); err != nil {
		return err
	}
	if download != "" {
		if err := fetch(ctx, version, download, std); err != nil {
			return err
		}
	}
	bins, err := built(ctx, version, std)
	if err != nil {
		return err
	}
	c, err := openCache(std)
	fmt.Fprintf(std.out, "Kubernetes %s and its node: %d components built in %s\n", version, len(bins), c.Dir)
	return err
}

// fetch downloads missing programs that are published.
func fetch(ctx context.Context, version, from string, std streams) error {
	source := cache.Source{Mirror: from, Stall: time.Minute}
	if from == "1" {
		source.Mirror = ""
	} else if u, err := url.Parse(from); err != nil || u.Host == "" {
		return fmt.Errorf("--download %s: give 1, or the URL of a mirror", from)
	}
	c, components, err := componentsOf(ctx, version, std)
	if err != nil {
		return err
	}
	return c.Download(ctx, source, components)
}

func which(ctx context.Context, args []string, std streams) error {
	var version string
	rest, err := newFlags("which", std).withKubernetes(&version).parse(args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return fmt.Errorf("which takes one program, got %d", len(rest))
	}
	c, components, err := componentsOf(ctx, version, std)
	if err != nil {
		return err
	}
	var known []string
	for _, component := range components {
		known = append(known, component.Binaries()...)
		if !slices.Contains(component.Binaries(), rest[0]) {
			continue
		}
		bin, ok := c.Bin(component)
		if !ok {
			return fmt.Errorf("%s is not built: run `onenode build --kubernetes %s`", rest[0], version)
		}
		_, err := fmt.Fprintf(std.out, "%s/%s\n", bin, rest[0])
		return err
	}
	return fmt.Errorf("no program %q: there are %v", rest[0], known)
}
