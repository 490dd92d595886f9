//go:build web

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a page in headless Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context
}

// open opens a page. Each report of the browser about it fails the test.
func open(t *testing.T, url string) browser {
	t.Helper()
	binary, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("the test of the site needs Chromium: apt-get install chromium")
	}
	var mu sync.Mutex
	var reports []string
	listen := func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *cdpruntime.EventExceptionThrown:
			reports = append(reports, e.ExceptionDetails.Text)
		case *log.EventEntryAdded:
			reports = append(reports, e.Entry.Text)
		}
	}
	ctx, cancel := chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(chromedp.ExecPath(binary), chromedp.NoSandbox,
		chromedp.ModifyCmdFunc(func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} })),
		chromedp.WithListener(listen))
	t.Cleanup(func() {
		cancel()
		mu.Lock()
		defer mu.Unlock()
		for _, text := range reports {
			t.Error("the browser reports:", text)
		}
	})
	b := browser{t, ctx}
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, log.Enable, cdp.Empty{})
		return err
	}), chromedp.Navigate(url))
	return b
}

func (b browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// wait waits in the page until an expression is true.
func (b browser) wait(expression string) {
	b.t.Helper()
	b.do(chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(time.Minute)))
}

func (b browser) eval(expression string) string {
	b.t.Helper()
	out, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return out
}

// TestSite_Browser_SearchesAndChangesColours opens the files of the site, without a server.
func TestSite_Browser_SearchesAndChangesColours(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "1.2.3")
	for _, version := range []string{"1.2.2", "1.2.3"} {
		if err := run(version, filepath.Join(dir, version)); err != nil {
			t.Fatal(err)
		}
	}
	b := open(t, "file://"+filepath.Join(out, "docs/index.html"))
	const colour = `getComputedStyle(document.body).backgroundColor`
	b.wait(`window.parts?.length > 300 && document.querySelector('nav [aria-current]')`)
	if versions := b.eval(`[...document.getElementById('version').options].map((o) => o.value + (o.selected ? '*' : '')).join()`); versions != "1.2.3*,1.2.2" {
		t.Errorf("versions are %s", versions)
	}
	first := b.eval(colour)
	b.eval(`document.getElementById('theme').click(), ''`)
	second := b.eval(colour)
	b.eval(`const search = document.getElementById('search'); search.value = 'mig-one'; search.dispatchEvent(new Event('input')), ''`)
	if hits := b.eval(`document.getElementById('found').innerText`); !strings.Contains(hits, "mig-one") {
		t.Errorf("the search shows %q", hits)
	}
	if none := b.eval(`search.value = 'mig-one nowhere-at-all'; search.dispatchEvent(new Event('input')); document.getElementById('found').innerText`); none != "" {
		t.Errorf("the search for a word that no page has shows %q", none)
	}
	b.eval(`search.value = 'Why is my pod pending?'; search.dispatchEvent(new Event('input')), ''`)
	waits := b.eval(`document.querySelector('#found a').href`)
	if !strings.HasSuffix(waits, "/docs/troubleshooting.html#the-pod-stays-pending") {
		t.Errorf("for a pod that waits, the first hit is %s", waits)
	}
	b.eval(`location.hash = '#use', ''`)
	b.wait(`document.getElementById('found').innerText === ''`)
	to := b.eval(`search.value = 'preemption'; search.dispatchEvent(new Event('input')); document.querySelector('#found a').href`)
	if !strings.HasSuffix(to, "/docs/preemption.html") {
		t.Errorf("the first hit is %s", to)
	}
	clicked := b.eval(`let clicked = ''; document.querySelector('#found a').addEventListener('click', (e) => { e.preventDefault(); clicked = e.currentTarget.href; });
		search.form.requestSubmit(); clicked`)
	if clicked != to {
		t.Errorf("Enter follows %q", clicked)
	}
	b.do(chromedp.Navigate(to))
	b.wait(`location.pathname.endsWith('/docs/preemption.html') && document.querySelector('main h1') && document.documentElement.dataset.theme`)
	if third := b.eval(colour); first == second || third != second {
		t.Errorf("colours at first, after the button, and on the next page: %s, %s, %s", first, second, third)
	}
}
