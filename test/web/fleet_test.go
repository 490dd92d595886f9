//go:build web

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/fleetserver"
)

// TestFleet_5000Nodes_PaintsAndUpdates prints the speed of the page with 5,000 nodes of 8 GPUs, of which more than half are in use.
func TestFleet_5000Nodes_PaintsAndUpdates(t *testing.T) {
	const nodes, cut = 5000, 1000 // As the benchmark of the controller has them.
	s, err := fleetserver.New()
	must(t, err)
	held, of := map[string]bool{}, map[string][]string{"hgx-h100": boards(t, "hgx-h100"), "dgx-1-v100": boards(t, "dgx-1-v100")}
	for node := range nodes {
		profile := "dgx-1-v100"
		if node < cut {
			profile = "hgx-h100"
		}
		must(t, s.AddNode(node, profile))
		for j, board := range of[profile] {
			if team, ok := holder(node, j); ok {
				held[fleetserver.NodeName(node)+"/"+strings.Split(board, "-")[2]] = true
				s.Add("resourceclaims", claim(team, fmt.Sprintf("train-%d-%d", node, j), device(node, board)))
			}
			if sick, ok := states[(node*len(of[profile])+j)%470]; ok {
				taint(s, node, profile, board, sick)
			}
		}
		s.Add("pods", pluginPod(fleetserver.NodeName(node)))
	}
	s.Metrics = figuresOf(held)
	began := time.Now()
	p := serve(t, s)
	p.open(1440, 1000)
	p.wait(`document.querySelector('[data-gpu]') !== null`)
	first := time.Since(began)
	p.wait(shown + fmt.Sprintf(` && document.querySelector('[role=grid]').ariaRowCount === '%d'`, nodes))
	t.Logf("%d nodes: the first GPUs are drawn after %d ms, all are known after %d ms", nodes, first.Milliseconds(), time.Since(began).Milliseconds())
	t.Logf("the server used %d ms of a processor, and the browser painted first after %.0f ms", p.cpu().Milliseconds(),
		eval[float64](p, `performance.getEntriesByName('first-contentful-paint')[0].startTime`))
	p.run(chromedp.Reload())
	began = time.Now()
	p.wait(shown)
	t.Logf("a second visit shows all after %d ms", time.Since(began).Milliseconds())
	p.wait(measured) // Utilization is read at once, and does not slow updates down.
	before := p.cpu()
	for i := range 5 {
		began = time.Now()
		name := fmt.Sprint("new-", i)
		_, err := p.client.ResourceV1().ResourceClaims("new").Create(t.Context(), claim("new", name, device(3, of["hgx-h100"][i])), metav1.CreateOptions{})
		must(t, err)
		p.wait(fmt.Sprintf(`[...document.querySelectorAll('[data-gpu]')].some((a) => a.ariaLabel.includes('new/%s'))`, name))
		took := time.Since(began)
		t.Logf("a new claim is on the page after %d ms", took.Milliseconds())
		if took > 5*time.Second {
			t.Errorf("a claim appeared after %s", took)
		}
	}
	t.Logf("five updates used %d ms of a processor in the server", (p.cpu() - before).Milliseconds())
	frames := eval[[]float64](p, `new Promise((done) => {
		const view = document.getElementById('view'), times = [];
		let last = performance.now();
		const step = (now) => {
			times.push(now - last);
			last = now;
			view.scrollTop += 700;
			times.length < 120 ? requestAnimationFrame(step) : done(times.sort((a, b) => a - b));
		};
		requestAnimationFrame(step);
	})`)
	t.Logf("scrolling by 700 pixels a frame: median %.0f ms, 99th percentile %.0f ms a frame", frames[len(frames)/2], frames[len(frames)*99/100])
	if rows := eval[int](p, `document.querySelectorAll('[role=row]').length`); rows > 200 {
		t.Errorf("the document has %d rows", rows)
	}
	p.shoot(
		picture{"nodes-5000.png", "light", 1440, 860, "", measured},
		picture{"nodes-5000-search.png", "dark", 1440, 640, "#?search=node:node-0000", measured},
	)
	requests := s.Requests()
	p.wait(fmt.Sprintf(`(window.began ??= performance.now()) + %d < performance.now()`, 12_000))
	if read := s.Requests() - requests; read > 200 {
		t.Errorf("the page of %d nodes made %d requests in 12 s", nodes, read)
	}
}
