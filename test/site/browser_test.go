//go:build web

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestSite_Browser_SearchesAndChangesColours opens the files of the site in headless Chromium, without a server.
func TestSite_Browser_SearchesAndChangesColours(t *testing.T) {
	out := filepath.Join(t.TempDir(), "site")
	if err := run("1.2.3", out); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx, stop := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox)...)
	defer stop()
	ctx, closeTab := chromedp.NewContext(ctx)
	defer closeTab()
	var complaints []string
	chromedp.ListenTarget(ctx, func(event any) {
		if e, ok := event.(*log.EventEntryAdded); ok {
			complaints = append(complaints, e.Entry.Text)
		}
	})
	var background [3]string
	var location, hits, title string
	colour := func(to *string) chromedp.Action {
		return chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, to)
	}
	err := chromedp.Run(ctx, chromedp.Navigate("file://"+filepath.Join(out, "docs/index.html")),
		colour(&background[0]), chromedp.Click("#theme"), colour(&background[1]),
		chromedp.SendKeys("#search", "mig-one"), chromedp.WaitVisible("#found a"), chromedp.Text("#found", &hits),
		chromedp.SendKeys("#search", kb.Enter), chromedp.WaitVisible("main h1"), chromedp.WaitNotPresent("#found a"),
		chromedp.Location(&location), chromedp.Title(&title), colour(&background[2]))
	if err != nil {
		t.Fatal(err)
	}
	if background[0] == background[1] || background[1] != background[2] {
		t.Errorf("colours at first, after the button and on the next page: %v", background)
	}
	if !strings.Contains(hits, "MIG") || !strings.HasSuffix(location, ".html") || strings.HasSuffix(location, "docs/index.html") || title == "" {
		t.Errorf("search finds %q, and leads to %s, %q", hits, location, title)
	}
	if len(complaints) > 0 {
		t.Errorf("the browser complains: %v", complaints)
	}
}
