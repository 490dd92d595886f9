// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/show/web"
)

func newWeb(f *factory) *cobra.Command {
	var port int
	var open bool
	c := &cobra.Command{
		Use:   "web",
		Short: "Show the GPUs of the cluster as a page in your browser",
		Long: "Serve a page with all GPUs, drawn to scale, their claims, and why claims wait. It follows the " +
			"cluster.\n" +
			"\n" +
			"The page is for this machine only: the server listens on 127.0.0.1, and the printed URL has a secret " +
			"part. It has\n" +
			"your rights in the cluster, and only reads. It loads nothing from the network. Interrupt the command to " +
			"end it.",
		Example: "  kubectl gpu web\n  kubectl gpu web --open\n  kubectl gpu web --port 8080",
		Args:    cobra.NoArgs,
	}
	c.Flags().IntVar(&port, "port", 0, "Port of 127.0.0.1; 0 is any free one.")
	c.Flags().BoolVar(&open, "open", false, "Open the page in the browser, by a file that only you can read.")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if port < 0 || port > 1<<16-1 {
			return usageError{fmt.Errorf("--port %d is not a port: give 0 to 65535", port)}
		}
		return f.serve(c.Context(), port, open)
	}
	return c
}

func (f *factory) serve(ctx context.Context, port int, open bool) error {
	r, err := f.reader()
	if err != nil {
		return err
	}
	kubeconfig, err := f.config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	if err := r.reachable(ctx); err != nil {
		return err
	}
	listener, err := web.Listen(port)
	if err != nil {
		return err
	}
	toFollow := r.resources()
	var names []string
	for _, one := range toFollow {
		names = append(names, one.Name)
	}
	cluster := web.NewCluster(cmp.Or(*f.config.Context, kubeconfig.CurrentContext), f.driver, names...)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, one := range toFollow {
		running.Go(func() { cluster.Follow(ctx, one) })
	}
	failed := make(chan error, 1)
	running.Go(func() {
		defer cancel() // A page that is not refreshed is wrong.
		failed <- cluster.Run(ctx)
	})
	token := web.NewToken()
	url := web.URL(listener, token)
	fmt.Fprintln(f.Out, url)
	fmt.Fprintln(f.ErrOut, "Open this URL in a browser of this machine. Interrupt the command (Ctrl-C) to end it.")
	if open {
		file, err := redirection(url)
		if err == nil {
			defer func() { _ = os.Remove(file) }()
			err = openBrowser(ctx, file)
		}
		if err != nil {
			fmt.Fprintf(f.ErrOut, "note: no browser was opened: %v\n", err)
		}
	}
	gauge := &gauge{reader: r, known: map[string]corev1.Pod{}}
	err = web.Serve(ctx, listener, web.NewHandler(token, cluster, (&explainer{factory: f}).explain, gauge.measure))
	cancel()
	return errors.Join(err, <-failed)
}

// reachable fails if the user cannot read slices at all.
func (r *reader) reachable(ctx context.Context) error {
	ctx, cancel := r.bounded(ctx, defaultTimeout)
	defer cancel()
	_, err := r.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{Limit: 1})
	return slicesError(err)
}

// followed returns a source for the page, with the effect of objects that the user may not list.
func (r *reader) followed(s source, effect string) web.Resource {
	out := web.Resource{Name: string(s.resource), Source: s.lists[0], Effect: effect, Optional: s.optional}
	if len(s.lists) > 1 {
		out.Else = &web.Resource{Name: out.Name, Source: s.lists[1], Scope: " of namespace " + r.own, Effect: effect}
		out.Scope, out.Effect = " of all namespaces", r.onlyOwn(s.kind)
	}
	return out
}

// resources returns what the page follows.
func (r *reader) resources() []web.Resource {
	var rules *web.Resource
	for _, version := range slices.Backward(read.RuleVersions) {
		one := r.followed(from(ruleKind, "", r.dynamic.Resource(read.RuleResource(version))), ruleKind.effect)
		one.Else, rules = rules, &one
	}
	ours := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, r.driver).String()
	published := read.ListWatch(r.client.ResourceV1().ResourceSlices(), ours)
	claims := r.claims()
	nodes := from(kind{resource: read.Nodes}, "", r.client.CoreV1().Nodes())
	return []web.Resource{
		r.followed(claims, claims.effect), *rules,
		{Name: web.Slices, Source: published, Effect: "the page is empty"},
		r.followed(r.classes(), "pending claims are not shown"),
		r.followed(nodes, "nodes that are not ready or cordoned are not marked"),
	}
}

// explainer answers like `kubectl gpu why`. Questions that come together share what it read.
type explainer struct {
	*factory
	mu     sync.Mutex
	shared *objects
	read   time.Time
}

// shareFor is how long an answer may rely on objects that were read for another one.
const shareFor = 5 * time.Second

func (e *explainer) explain(ctx context.Context, namespace, name string) (any, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, cancel := e.bounded(ctx, defaultTimeout)
	defer cancel()
	r, err := e.reader()
	if err != nil {
		return nil, err
	}
	g := getter{r, &why.Cluster{States: r.states}}
	subject, err := g.claim(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	if e.shared == nil || time.Since(e.read) > shareFor {
		if e.shared, err = e.load(ctx, want{
			claims:     true,
			classes:    true,
			nodes:      true,
			rules:      true,
			allDrivers: true,
		}); err != nil {
			return nil, err
		}
		e.read = time.Now()
		time.AfterFunc(2*shareFor, e.forget)
	}
	if err := g.add(ctx, e.shared, &why.Manifest{}, subject); err != nil {
		return nil, err
	}
	o := why.Options{Driver: e.driver, Limit: why.DefaultLimit, Now: e.now()}
	answer := why.Ask(ctx, g.cluster, subject, o)
	g.consider(ctx, &answer, subject.Pod, o)
	return answer, nil
}

// forget frees the memory of objects that no answer may rely on.
func (e *explainer) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.read) > shareFor {
		e.shared = nil
	}
}

// redirection writes a file that only the user can read, and that leads a browser to a URL. Command lines, also those
// of browsers, are readable by all users of the machine, so they must not have the secret part of the URL.
func redirection(url string) (file string, err error) {
	out, err := os.CreateTemp("", "kubectl-gpu-*.html")
	if err != nil {
		return "", err
	}
	text := html.EscapeString(url)
	_, err = fmt.Fprintf(out, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url=%s\"><a "+
		"href=\"%[1]s\">The GPUs of the cluster</a>\n", text)
	if err = errors.Join(err, out.Close()); err != nil {
		_ = os.Remove(out.Name())
		return "", err
	}
	return out.Name(), nil
}

func openBrowser(ctx context.Context, file string) error {
	name, args := "xdg-open", []string{file}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", file}
	}
	return exec.CommandContext(ctx, name, args...).Run()
}
