//go:build web

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package web looks at the page of `kubectl gpu web` with headless Chromium, at simulated clusters.
package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-dra-driver/test/fleetserver"
)

// page is the page of a simulated cluster in a browser.
type page struct {
	t          *testing.T
	ctx        context.Context
	client     *kubernetes.Clientset
	kubeconfig string
	url        string
	server     *os.Process

	mu sync.Mutex
	// complaints are errors of scripts and of the page's policy.
	complaints []string
}

// command is kubectl-gpu for a cluster.
func command(kubeconfig string, args ...string) *exec.Cmd {
	c := exec.Command("../../bin/kubectl-gpu", args...)
	c.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	return c
}

// serve starts `kubectl gpu web` for a server's cluster, and checks that it ends after an interrupt.
func serve(t *testing.T, server *fleetserver.Server) *page {
	t.Helper()
	must(t, server.Start())
	t.Cleanup(func() { _ = server.Close() })
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, []byte(server.Kubeconfig()), 0o600))
	return serveCluster(t, kubeconfig)
}

func serveCluster(t *testing.T, kubeconfig string) *page {
	t.Helper()
	p := &page{t: t, kubeconfig: kubeconfig}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	p.client, err = kubernetes.NewForConfig(config)
	must(t, err)
	c := command(p.kubeconfig, "web")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	p.server = c.Process
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		if err := c.Wait(); err != nil {
			t.Errorf("kubectl gpu web ended with %v", err)
		}
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	p.url = strings.TrimSpace(url)
	return p
}

// cpu is the processor time that `kubectl gpu web` has used.
func (p *page) cpu() time.Duration {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.server.Pid))
	must(p.t, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	user, err := strconv.Atoi(fields[12])
	must(p.t, err)
	system, err := strconv.Atoi(fields[13])
	must(p.t, err)
	return time.Duration(user+system) * 10 * time.Millisecond // The kernel counts in hundredths of a second.
}

// open starts a browser with the page.
func (p *page) open(width, height int64) {
	p.t.Helper()
	binary, err := exec.LookPath("chromium")
	if err != nil {
		p.t.Fatal("the tests of the page need Chromium: apt-get install chromium")
	}
	// The browser must live as long as the clean-up.
	ctx, cancel := chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(chromedp.ExecPath(binary), chromedp.NoSandbox,
		chromedp.ModifyCmdFunc(func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} })),
		chromedp.WithListener(p.listen))
	p.t.Cleanup(cancel)
	p.ctx = ctx

	p.t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, text := range p.complaints {
			p.t.Error("the browser reports:", text)
		}
	})
	p.run(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, log.Enable, cdp.Empty{})
		return err
	}), chromedp.EmulateViewport(width, height), chromedp.Navigate(p.url))
}

// listen keeps what the browser complains about.
func (p *page) listen(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *cdpruntime.EventExceptionThrown:
		p.complaints = append(p.complaints, e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		p.complaints = append(p.complaints, e.Entry.Text)
	}
}

func (p *page) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	must(p.t, chromedp.Do(p.ctx, actions...))
}

// eval returns the value of an expression.
func eval[T any](p *page, expression string) T {
	p.t.Helper()
	out, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	must(p.t, err)
	return out
}

// wait waits in the page, frame by frame, until an expression is true, and returns how long that took.
func (p *page) wait(expression string) time.Duration {
	p.t.Helper()
	began := time.Now()
	if err := chromedp.Do(p.ctx, chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(time.Minute))); err != nil {
		if errors.Is(err, chromedp.ErrPollingTimeout) {
			p.t.Fatalf("never true: %s\n%s", expression, eval[string](p, "document.body.innerText"))
		}
		p.t.Fatal(err)
	}
	return time.Since(began)
}

const (
	shown = `document.body?.dataset.shown === 'true' && document.getElementById('state').textContent === 'Live'`
	model = `import('./model.js').then((m) => `
)

// inModel returns the value of an expression about m, the page's module model.js.
func inModel[T any](p *page, expression string) T {
	p.t.Helper()
	return eval[T](p, model+expression+`)`)
}

// shownGPUs returns the GPUs of the page's model as `kubectl gpu ls` prints them.
func (p *page) shownGPUs() []map[string]any {
	p.t.Helper()
	return inModel[[]map[string]any](p, `JSON.parse(JSON.stringify(m.nodes().flatMap((n) => n.gpus), (k, v) => ['summary', 'condition', 'fragmented', 'free', 'remedies', 'text'].includes(k) ? undefined : v))`)
}

// ls returns the GPUs of `kubectl gpu ls` without the fields of a Kubernetes object.
func (p *page) ls() (gpus []map[string]any) {
	p.t.Helper()
	out, err := command(p.kubeconfig, "ls", "-o", "json").Output()
	must(p.t, err)
	var list struct{ Items []map[string]any }
	must(p.t, json.Unmarshal(out, &list))
	for _, g := range list.Items {
		for _, key := range []string{"apiVersion", "kind", "metadata"} {
			delete(g, key)
		}
	}
	return list.Items
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
