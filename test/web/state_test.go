//go:build web

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/fleetserver"
)

// click clicks on an element.
func (p *page) click(selector string) {
	p.t.Helper()
	p.run(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`document.querySelector(%q).click()`, selector)))
}

// face has the parts of the page that show its state.
const face = `(() => {
	const shown = (e) => e?.textContent ?? '';
	return [shown(document.querySelector('[role=tab][aria-selected=true]')).split(' ')[0], document.getElementById('search').value,
		document.querySelector('#colour input:checked').value, document.getElementById('panel').hidden ? '' : shown(document.querySelector('#panel h2'))].join(' | ');
})()`

func TestPage_Address_HoldsTheState(t *testing.T) {
	p := serve(t, busy(t))
	p.open(1200, 900)
	p.wait(shown)
	is := func(want string) {
		t.Helper()
		p.wait(fmt.Sprintf(`%s === %q`, face, want))
	}
	is("GPUs |  | namespace | ")
	p.click(`#colour input[value=use]`)
	is("GPUs |  | use | ")
	p.run(chromedp.Focus(chromedp.CSS("#search")), chromedp.KeyEvent("h100"))
	p.wait(`location.hash.includes('search=h100')`)
	p.click(`[data-gpu="gpu-0000-43-00-0"]`)
	is("GPUs | h100 | use | gpu-0000-43-00-0")
	p.click("#tab-claims")
	is("Claims | h100 | use | gpu-0000-43-00-0")
	link := eval[string](p, `location.href`)
	p.run(chromedp.Reload())
	p.wait(shown)
	is("Claims | h100 | use | gpu-0000-43-00-0")
	back := func() { p.run(chromedp.Evaluate[chromedp.Void](`history.back()`)) }
	back()
	is("GPUs | h100 | use | gpu-0000-43-00-0")
	back()
	is("GPUs | h100 | use | ")
	p.run(chromedp.Evaluate[chromedp.Void](`history.forward()`))
	is("GPUs | h100 | use | gpu-0000-43-00-0")
	p.run(chromedp.KeyEvent(kb.Escape))
	is("GPUs | h100 | use | ")

	// The link shows the same in another window, and a bad one a new page.
	p.run(chromedp.Navigate("about:blank"), chromedp.Navigate(link))
	p.wait(shown)
	is("Claims | h100 | use | gpu-0000-43-00-0")
	p.run(chromedp.Navigate("about:blank"), chromedp.Navigate(p.url+"#gpu/%E0%A4?tab=constructor&colour=__proto__&evil=1"))
	p.wait(shown)
	is("GPUs |  | namespace | ")
}

// TestPage_Free_IsOneNumber compares the count of free GPUs in the totals, the heads of rows, the legend and the search. Nothing
// holds an unhealthy, a cordoned and an unread GPU there.
func TestPage_Free_IsOneNumber(t *testing.T) {
	s := busy(t)
	p := serve(t, s)
	sick(s, 1, "hgx-h100", "gpu-0000-d1-00-0")
	taint(s, 4, "hgx-b200", "gpu-0000-9b-00-0", resourceapi.DeviceTaint{Key: "gpu.nvidia.com/cordoned", Effect: "NoSchedule"})
	p.open(1280, 800)
	p.wait(shown)
	p.wait(`document.querySelector('.c-tainted') !== null && document.querySelector('.c-unhealthy') !== null`)
	var free, unheld int
	for _, g := range p.ls() {
		if g["use"] == "free" {
			unheld++
			if g["health"] == nil && g["taints"] == nil {
				free++
			}
		}
	}
	if free != unheld-2 {
		t.Fatalf("%d of %d GPUs without a holder are free", free, unheld)
	}
	number := func(expression string) int { t.Helper(); return eval[int](p, expression) }
	for what, expression := range map[string]string{
		"the totals":       `+[...document.querySelectorAll('#totals div')].find((d) => d.textContent.startsWith('Free')).querySelector('dd').textContent`,
		"the heads":        `[...document.querySelectorAll('.head .free')].reduce((sum, e) => sum + parseInt(e.textContent), 0)`,
		"the bars":         `document.querySelectorAll('#view .bar.u-free.use-free').length`,
		"the legend":       `+[...document.querySelectorAll('#legend .chip')].find((c) => c.textContent.startsWith('free')).querySelector('b').textContent`,
		"the legend's use": `(document.querySelector('input[value=use]').click(), new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(+[...document.querySelectorAll('#legend .chip')].find((c) => c.textContent.startsWith('free')).querySelector('b').textContent)))))`,
	} {
		if got := number(expression); got != free {
			t.Errorf("%s: %d GPUs are free, not %d", what, got, free)
		}
	}
	// Each entry of each legend finds as many GPUs as it says.
	for _, by := range []string{"namespace", "use", "health"} {
		p.run(chromedp.Navigate("about:blank"), chromedp.Navigate(p.url+"#?colour="+by))
		p.wait(shown)
		chips := number(`document.querySelectorAll('#legend button').length`)
		if chips < 3 {
			t.Errorf("the legend by %s has %d entries", by, chips)
		}
		for i := range chips {
			text := eval[string](p, fmt.Sprintf(`(() => { const c = document.querySelectorAll('#legend button')[%d], n = c.querySelector('b').textContent; c.click(); return n + ' of '; })()`, i))
			p.wait(fmt.Sprintf(`document.getElementById('found').textContent.startsWith(%q)`, text))
			p.click(`#legend [aria-pressed=true]`)
			p.wait(`document.getElementById('found').textContent === ''`)
		}
	}
}

// taint taints a GPU and its partitions.
func taint(s *fleetserver.Server, node int, profile, name string, taint resourceapi.DeviceTaint) {
	for i := range 20 {
		found := false
		s.ChangeNode(node, profile, i, func(slice *resourceapi.ResourceSlice) {
			for j := range slice.Spec.Devices {
				if d := &slice.Spec.Devices[j]; strings.HasPrefix(d.Name, name) {
					found = true
					d.Taints = append(d.Taints, taint)
				}
			}
		})
		if found {
			return
		}
	}
}

// TestPage_Order_AfterChanges_EqualsASort adds and removes claims, also such whose numbers are equal.
func TestPage_Order_AfterChanges_EqualsASort(t *testing.T) {
	p := serve(t, busy(t))
	p.open(1280, 800)
	p.wait(shown)
	wrong := inModel[string](p, `(() => {
		const order = new Intl.Collator('en', { numeric: true }), keys = new Set(m.claims().map(m.keyOf));
		let seed = 7;
		const random = (n) => (seed = (seed * 16807) % 2147483647) % n;
		for (let i = 0; i < 2000; i++) {
			const name = (random(2) ? 'job-0' : 'job-') + random(40), claim = { namespace: 'team-' + random(12), name, state: 'reserved' };
			if (random(3)) { m.apply({ claim }); keys.add(m.keyOf(claim)); } else { m.apply({ gone: { claim } }); keys.delete(m.keyOf(claim)); }
			const got = m.claims().map(m.keyOf), want = [...keys].sort((a, b) => order.compare(a, b) || (a < b ? -1 : 1));
			if (got.join() !== want.join()) return 'after ' + i + ' changes: ' + got + ' is not ' + want;
		}
		return '';
	})()`)
	if wrong != "" {
		t.Error(wrong)
	}
}

// TestPage_Colours_OfManyNamespaces_EqualTheLegend has more namespaces than colours.
func TestPage_Colours_OfManyNamespaces_EqualTheLegend(t *testing.T) {
	var extra []*resourceapi.ResourceClaim
	for i, bus := range []string{"52", "61", "9d", "c3", "df"} {
		extra = append(extra, claim(fmt.Sprint("team-", i), "job", device(1, "gpu-0000-"+bus+"-00-0")))
	}
	for i, bus := range []string{"3b", "4c", "5d", "9b", "bb", "cb"} {
		extra = append(extra, claim(fmt.Sprint("crew-", i), "job", device(4, "gpu-0000-"+bus+"-00-0")))
	}
	p := serve(t, busy(t, extra...))
	p.open(1280, 800)
	p.wait(shown)
	p.wait(`document.querySelectorAll('#legend .chip').length > 8`)
	if found := eval[[]string](p, problems); len(found) > 0 {
		t.Error(strings.Join(found, "\n"))
	}
	chips := eval[[]string](p, `[...document.querySelectorAll('#legend .chip')].map((c) => c.querySelector('.swatch').className.replace('swatch ', '') + ' ' + c.textContent)`)
	if len(chips) != 10 || !strings.HasPrefix(chips[0], "n0 training") || chips[8] != "nx 7 other namespaces7" || !strings.HasPrefix(chips[9], "u-free free") {
		t.Errorf("the legend is %q", chips)
	}
	// Details have the colours of the legend.
	eval[bool](p, `(() => { location.hash = '#gpu/node-00001/gpu-0000-df-00-0'; return true; })()`)
	p.wait(`document.querySelector('#panel .holders .swatch') !== null`)
	colour := eval[string](p, `getComputedStyle(document.querySelector('#panel .holders .swatch')).backgroundColor + getComputedStyle(document.querySelector('#panel .segment')).backgroundColor`)
	legend := eval[string](p, `getComputedStyle(document.querySelector('#legend .nx')).backgroundColor`)
	if colour != legend+legend {
		t.Errorf("the panel has the colours %s, the legend %s", colour, legend)
	}
	// A namespace that comes later takes no other's colour.
	_, err := p.client.ResourceV1().ResourceClaims("zebra").Create(t.Context(), claim("zebra", "late", device(3, "gpu-0000-61-00-0")), metav1.CreateOptions{})
	must(t, err)
	p.wait(`[...document.querySelectorAll('#legend .chip')].some((c) => c.textContent.startsWith('8 other'))`)
	again := eval[[]string](p, `[...document.querySelectorAll('#legend .chip')].map((c) => c.querySelector('.swatch').className.replace('swatch ', '') + ' ' + c.textContent)`)
	if !slices.Equal(again[:8], chips[:8]) {
		t.Errorf("the legend was %q and is %q", chips, again)
	}
}

func TestPage_UnhealthyGPU_ShowsRemedyAndCopiesCommand(t *testing.T) {
	s := busy(t)
	p := serve(t, s)
	taint(s, 1, "hgx-h100", "gpu-0000-d1-00-0", resourceapi.DeviceTaint{Key: "gpu.nvidia.com/unhealthy", Value: "reset", Effect: "NoSchedule"})
	s.ChangeNode(5, "a30", 0, func(slice *resourceapi.ResourceSlice) { slice.Spec.Pool.ResourceSliceCount++ })
	p.open(1280, 800)
	p.wait(shown)
	p.wait(`document.querySelector('.bar.unhealthy') !== null`)
	p.click(`.bar.unhealthy`)
	const command = "nvidia-smi -r -i 0000:d1:00.0"
	p.wait(fmt.Sprintf(`document.querySelector('#panel .command code')?.textContent === %q`, command))
	if text := eval[string](p, `document.querySelector('#panel .remedy').innerText`); !strings.Contains(text, "the driver asks for a reset of the GPU") {
		t.Errorf("the remedy is %q", text)
	}
	// The command `kubectl gpu doctor` has the same words.
	if out, _ := doctor(p); !strings.Contains(out, command) { // It exits as for a warning.
		t.Errorf("kubectl gpu doctor says:\n%s", out)
	}
	copied := eval[string](p, `new Promise((done) => {
		Object.defineProperty(navigator, 'clipboard', { value: { writeText: (text) => { done(text); return Promise.resolve(); } } });
		document.querySelector('#panel .copy').click();
	})`)
	if copied != command {
		t.Errorf("the button copies %q", copied)
	}
	p.wait(`document.querySelector('#panel .copy').textContent === 'Copied'`)
	// Notes stand under their own heading.
	notes := eval[[]string](p, `[document.getElementById('notes-title').textContent, ...[...document.querySelectorAll('#notes-list li')].map((e) => e.textContent)]`)
	if !slices.ContainsFunc(notes, func(s string) bool { return strings.HasPrefix(s, "node-00005: slices are missing") }) || !strings.HasPrefix(notes[0], "Notes ") {
		t.Errorf("the notes are %q", notes)
	}
	// A GPU in use gets its entry of the legend when the fault arrives.
	taint(s, 1, "hgx-h100", "gpu-0000-1b-00-0", resourceapi.DeviceTaint{Key: "gpu.nvidia.com/unhealthy", Value: "lost", Effect: "NoSchedule"})
	p.wait(`[...document.querySelectorAll('#legend .chip')].some((c) => c.textContent === 'held: unhealthy1')`)
}

// doctor returns the output of `kubectl gpu doctor` about the page's cluster.
func doctor(p *page) (string, error) {
	out, err := command(p.kubeconfig, "doctor").CombinedOutput()
	return string(out), err
}

func TestPage_Utilization_OnlyIfItIsRead(t *testing.T) {
	s := busy(t)
	for i := range 6 {
		s.Add("pods", pluginPod(fleetserver.NodeName(i)))
	}
	refuse := make(chan bool, 1)
	refuse <- false
	s.Metrics = func(w http.ResponseWriter, r *http.Request, pod string) {
		no := <-refuse
		refuse <- no
		switch {
		case no:
			http.Error(w, "no", http.StatusBadGateway)
		case strings.HasSuffix(pod, "00003"):
			<-r.Context().Done() // It hangs.
		default:
			figures(w, r, pod)
		}
	}
	p := serve(t, s)
	p.open(1280, 800)
	p.wait(shown)
	p.wait(measured)
	loads := eval[map[string]int](p, `Object.fromEntries([...document.querySelectorAll('[data-node]')].map((r) => [r.dataset.node, r.querySelectorAll('.load').length]))`)
	if loads["node-00000"] != 8 || loads["node-00003"] != 0 {
		t.Errorf("GPUs with a utilization, by node: %v", loads)
	}
	label := eval[string](p, `document.querySelector('[data-node="node-00000"] [data-gpu="gpu-0000-43-00-0"]').ariaLabel`)
	width := eval[string](p, `document.querySelector('[data-node="node-00000"] [data-gpu="gpu-0000-43-00-0"] .load').style.width`)
	if !strings.HasSuffix(label, "utilization "+strings.TrimSuffix(width, "%")+" %") {
		t.Errorf("the label is %q, and the line has the width %s", label, width)
	}
	p.wait(`document.querySelectorAll('#notes-list li').length === 1 && document.getElementById('notes-list').textContent.includes('The utilization of the GPUs of node-00003 is not shown')`)
	<-refuse
	refuse <- true
	p.wait(`document.querySelector('.load') === null && document.querySelectorAll('#notes-list li').length === 1`)
	if note := eval[string](p, `document.getElementById('notes-list').textContent`); !strings.Contains(note, "The utilization of 6 nodes is not shown") {
		t.Errorf("the notes are %q", note)
	}
}
