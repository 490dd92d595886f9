// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"gpu-dra-driver/deployments/sign"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		stop()
		os.Exit(1)
	}
}

// run builds the images that args select and prints a table of them to stdout;
// progress goes to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("out", "dist", "directory of the images; binaries are kept below it, so that an unchanged one is not linked again")
	version := flags.String("version", "dev", "tag of the images and version in the binaries")
	only := flags.String("only", "", "comma-separated names of the images to build; all without it")
	arch := flags.String("arch", runtime.GOARCH, "comma-separated architectures of the images: amd64, arm64")
	keyFile := flags.String("key", "", "file with an ECDSA key on P-256 in PEM, which signs the images as cosign does")
	program := flags.String("notices", "", "print the licence texts of the modules in this program of the repository, and build no image")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; images are named with --only", flags.Arg(0))
	}
	chosen, err := pick(catalog, *only)
	if err != nil {
		return err
	}
	on, err := platforms(*arch)
	if err != nil {
		return err
	}
	b := builder{version: *version, out: *out, progress: stderr}
	if *keyFile != "" {
		if b.key, err = sign.ReadKey(*keyFile); err != nil {
			return err
		}
	}
	if b.root, err = moduleRoot(ctx); err != nil {
		return err
	}
	if *program != "" {
		text, err := b.notices(ctx, *program)
		if err == nil {
			_, err = io.WriteString(stdout, text)
		}
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return fmt.Errorf("cannot make the output directory: %w", err)
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "IMAGE\tPLATFORM\tSIZE\tDIGEST OF THE INDEX")
	values := map[string]string{}
	for _, im := range chosen {
		r, err := b.release(ctx, im, on)
		if err != nil {
			return fmt.Errorf("image %s: %w", im.name, err)
		}
		for i, p := range on {
			fmt.Fprintf(table, "%s\tlinux/%s\t%.1f MB\t%s\n", r.reference, p.arch, float64(r.sizes[i])/1e6, r.digest)
		}
		if im.chart != "" {
			values[im.chart] += fmt.Sprintf(im.values+"\n", r.digest)
		}
	}
	for chart, text := range values {
		text = "# Digests of images, for helm install --values with the chart " + chart + ".\n" + text
		if err := os.WriteFile(filepath.Join(*out, "digests-"+chart+".yaml"), []byte(text), 0o644); err != nil {
			return fmt.Errorf("cannot write the digests: %w", err)
		}
	}
	return table.Flush()
}

// pick returns the images named in the comma-separated list, or all of them for an empty list.
func pick(all []image, names string) ([]image, error) {
	if names == "" {
		return all, nil
	}
	var chosen []image
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(im image) bool { return im.name == strings.TrimSpace(name) })
		if i < 0 {
			var known []string
			for _, im := range all {
				known = append(known, im.name)
			}
			return nil, fmt.Errorf("no image %q; there are: %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// moduleRoot returns the directory of the product's module.
func moduleRoot(ctx context.Context) (string, error) {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "gpu-dra-driver").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find the product's module; run from a checkout of this repository: %w", err)
	}
	return strings.TrimSpace(string(dir)), nil
}
