//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpu-dra-driver/test/dashboard"
)

var update = flag.Bool("update", false, "write the pictures of docs/monitoring again")

// rateInterval is Grafana's $__rate_interval for scrapes every 7.5 s. The plugin measures every 10 s.
const rateInterval = 30 * time.Second

// checkPictures draws the cluster's dashboards with the data from the server's start until faults end. Every panel must have data by
// then, except that of failures that no other case causes.
func (n *node) checkPictures(ctx context.Context, t *testing.T) {
	boards, err := installedDashboards(ctx, n.Env)
	must(t, err)
	dir := t.TempDir()
	if *update {
		dir = filepath.Join(n.Tree, "docs", "monitoring")
		must(t, os.MkdirAll(dir, 0o755))
	}
	sums, err := dashboard.Sums(filepath.Join(n.Tree, "deployments", "helm", "gpu-dra-driver", "monitoring", "dashboards"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, dashboard.SumsFile), []byte(sums), 0o644))
	to := n.faulty
	if to.IsZero() {
		to = time.Now()
	}
	window := dashboard.Window{From: n.began, To: to, Step: max(scrapeInterval, to.Sub(n.began)/250).Round(time.Second), RateInterval: rateInterval}
	for _, b := range boards {
		var html bytes.Buffer
		without, err := b.Page(&html, window, func(query string, w dashboard.Window, instant bool) ([]dashboard.Series, error) {
			return n.series(ctx, query, w, instant)
		})
		must(t, err)
		for _, title := range without {
			if b.Title+": "+title != neverSeen {
				t.Errorf("%s: %s has no data", b.Title, title)
			}
		}
		width, height := b.Size()
		file := filepath.Join(dir, strings.TrimPrefix(b.UID, "gpu-dra-")+".png")
		must(t, photograph(ctx, t, html.Bytes(), file, width, height))
		info, err := os.Stat(file)
		must(t, err)
		if info.Size() > 200_000 {
			t.Errorf("%s has %d bytes", file, info.Size())
		}
		t.Logf("%s: %d panels, %d of them without data, %d bytes", b.Title, len(b.Panels), len(without), info.Size())
	}
}

// photograph draws a page with headless Chromium, which ends with this process.
func photograph(ctx context.Context, t *testing.T, html []byte, file string, width, height int) error {
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("the pictures of the dashboards need Chromium: apt-get install chromium")
	}
	dir := t.TempDir()
	page := filepath.Join(dir, "page.html")
	if err := os.WriteFile(page, html, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir="+filepath.Join(dir, "profile"),
		fmt.Sprintf("--window-size=%d,%d", width, height), "--screenshot="+file, "file://"+page)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("chromium: %w: %s", err, out)
	}
	return reduce(file)
}

// reduce limits a picture to its 256 most frequent colours, so that its file is small.
func reduce(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	from, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return err
	}
	count, box := map[color.Color]int{}, from.Bounds()
	for y := range box.Dy() {
		for x := range box.Dx() {
			count[from.At(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	to, nearest := image.NewPaletted(box, frequent[:min(256, len(frequent))]), map[color.Color]uint8{}
	for i, c := range frequent {
		if nearest[c] = uint8(i); i >= 256 {
			nearest[c] = uint8(to.Palette.Index(c))
		}
	}
	for y := range box.Dy() {
		for x := range box.Dx() {
			to.SetColorIndex(x, y, nearest[from.At(x, y)])
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}
