//go:build web

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/test/fleetserver"
)

var update = flag.Bool("update", false, "write the pictures of docs/web again")

// picture is the page in a state, in a window and a colour scheme.
type picture struct {
	file, scheme  string
	width, height int64
	// hash is the state in the address, and until an expression that is true once the page shows it.
	hash, until string
}

// problems lists the faults of the map as a person would see them: texts that are cut or that overlap, and models that are not
// shown. Colours of bars must be in the legend, and stand for one thing.
const problems = `(() => {
	const out = [], all = (s, of = document) => [...of.querySelectorAll(s)], view = document.getElementById('view');
	const box = (e) => e.getBoundingClientRect();
	const apart = (a, b) => a.right <= b.left + 0.5 || b.right <= a.left + 0.5 || a.bottom <= b.top + 0.5 || b.bottom <= a.top + 0.5;
	const wide = document.documentElement.scrollWidth - innerWidth;
	if (wide > 0) out.push('the page is ' + wide + ' pixels too wide');
	const rows = all('[data-node]').sort((a, b) => box(a).top - box(b).top);
	rows.forEach((row, i) => {
		const node = row.dataset.node, of = box(row);
		if (i > 0 && box(rows[i - 1]).bottom > of.top + 0.5) out.push(node + ' overlaps the row before it');
		const texts = all('.name, .free, .model', row);
		if (texts.length !== 3) out.push(node + ' has ' + texts.length + ' texts');
		for (const t of texts) {
			const b = box(t);
			if (b.width < 4 || t.textContent.length < 3 && t.textContent !== '–') out.push(node + ': ' + t.className + ' is not visible');
			if (t.scrollWidth > t.clientWidth + 1 && t.clientWidth > 0) out.push(node + ': ' + t.className + ' is cut: ' + t.textContent);
			const range = document.createRange();
			range.selectNodeContents(t);
			for (const r of range.getClientRects()) if (r.right > b.right + 1.5 || r.right > innerWidth || r.left < 0) out.push(node + ': ' + t.className + ' is cut: ' + t.textContent);
			if (b.bottom > of.bottom + 0.5) out.push(node + ': ' + t.className + ' is below its row');
			for (const o of [...texts.filter((one) => one !== t), row.querySelector('.gpus')]) if (!apart(b, box(o))) out.push(node + ': ' + t.className + ' overlaps ' + o.className);
		}
		if (row.querySelector('.name').textContent !== node) out.push(node + ' has another name: ' + row.querySelector('.name').textContent);
		for (const g of all('.gpu', row)) if (box(g).bottom > of.bottom + 0.5) out.push(node + ': a GPU is below the row');
		for (const b of all('.bar', row)) if (box(b).width < 20) out.push(node + ': a bar has ' + box(b).width + ' pixels');
	});
	const colour = (e) => { const s = getComputedStyle(e); return s.backgroundImage + ' ' + s.backgroundColor; };
	const legend = new Map();
	for (const chip of all('#legend .chip')) {
		const c = colour(chip.querySelector('.swatch'));
		if (legend.has(c)) out.push('the legend has one colour for ' + legend.get(c) + ' and ' + chip.textContent);
		legend.set(c, chip.textContent);
	}
	if (view.className.includes('gpus')) {
		for (const e of all('.segment, .bar:not(.rest)', view)) if (!legend.has(colour(e))) out.push('the legend lacks the colour of ' + e.className + ' ' + colour(e));
	}
	return [...new Set(out)].slice(0, 10);
})()`

// scheme sets the colour scheme of the system.
func scheme(name string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
		})
		return err
	})
}

// shoot opens the page in the state of each picture, checks what it shows, and takes the pictures.
func (p *page) shoot(pictures ...picture) {
	p.t.Helper()
	dir := p.t.TempDir()
	if *update {
		dir = "../../docs/web"
		must(p.t, os.MkdirAll(dir, 0o755))
	}
	for _, c := range pictures {
		p.run(scheme(c.scheme), chromedp.EmulateViewport(c.width, c.height), chromedp.Navigate("about:blank"), chromedp.Navigate(p.url+c.hash))
		p.wait(shown)
		if c.until != "" {
			p.wait(c.until)
		}
		eval[int](p, `new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))`)
		picture, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
		must(p.t, err)
		must(p.t, os.WriteFile(dir+"/"+c.file, picture, 0o644))
		if len(picture) > 200_000 {
			p.t.Errorf("%s has %d bytes", c.file, len(picture))
		}
		for _, text := range eval[[]string](p, problems) {
			p.t.Errorf("%s: %s", c.file, text)
		}
	}
}

// measured is true once the bars show their utilization.
const measured = `document.querySelector('#view .load') !== null`

// TestPage_Pictures_FitAndStaySmall takes the pictures of the documentation: the page with few and with many nodes, in each colour
// scheme, and on a phone.
func TestPage_Pictures_FitAndStaySmall(t *testing.T) {
	s := busy(t)
	for i := range 6 {
		s.Add("pods", pluginPod(fleetserver.NodeName(i)))
	}
	held := map[string]bool{"node-00000/43": true, "node-00001/1b": true, "node-00001/43": true, "node-00003/38": true}
	for _, bus := range buses {
		held["node-00002/"+bus] = true
	}
	for _, bus := range []string{"9d", "c3", "d1", "df"} {
		held["node-00000/"+bus] = true
	}
	s.Metrics = figuresOf(held)
	p := serve(t, s)
	taint(s, 1, "hgx-h100", "gpu-0000-d1-00-0", resourceapi.DeviceTaint{Key: "gpu.nvidia.com/unhealthy", Value: "reset", Effect: "NoSchedule"})
	taint(s, 4, "hgx-b200", "gpu-0000-db-00-0", resourceapi.DeviceTaint{Key: "gpu.nvidia.com/cordoned", Effect: "NoSchedule"})
	s.ChangeNode(5, "a30", 0, func(slice *resourceapi.ResourceSlice) { slice.Spec.Pool.ResourceSliceCount++ })
	p.open(1280, 800)
	p.shoot(
		picture{"light.png", "light", 1280, 640, "#gpu/node-00001/gpu-0000-d1-00-0", measured},
		picture{"dark.png", "dark", 1280, 640, "#?colour=use", measured},
		picture{"health.png", "light", 1280, 640, "#?colour=health", measured},
		picture{"pending.png", "light", 900, 420, "#?tab=pending", `document.querySelector('.cards .summary') !== null`},
		picture{"claims.png", "dark", 1280, 620, "#?tab=claims", ""},
		picture{"narrow.png", "light", 400, 760, "", measured},
		picture{"narrow-panel.png", "dark", 400, 760, "#gpu/node-00001/gpu-0000-d1-00-0", measured},
	)
}

func TestPage_PicturesOf60And300Nodes_NamesAndModelsInFull(t *testing.T) {
	for _, nodes := range []int{60, 300} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			p := serve(t, fleet(t, nodes))
			p.open(1280, 800)
			file := func(name string) string { return fmt.Sprintf("nodes-%d%s.png", nodes, name) }
			p.shoot(
				picture{file(""), "light", 1440, 860, "", measured},
				picture{file("-dark"), "dark", 1440, 860, "#?colour=health", measured},
				picture{file("-phone"), "light", 400, 760, "", measured},
				picture{file("-search"), "light", 1440, 640, "#?search=b200", measured},
			)
			p.run(chromedp.EmulateViewport(1440, 860), chromedp.Navigate("about:blank"), chromedp.Navigate(p.url))
			p.wait(shown)
			for range 30 {
				p.run(chromedp.Evaluate[chromedp.Void](`document.getElementById('view').scrollTop += 400`))
				eval[int](p, `new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))`)
				if found := eval[[]string](p, problems); len(found) > 0 {
					t.Fatal(strings.Join(found, "\n"))
				}
			}
		})
	}
}
