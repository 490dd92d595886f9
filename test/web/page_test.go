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
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/test/fleetserver"
)

const driver = "gpu.nvidia.com"

func device(node int, name string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: fleetserver.NodeName(node) + "/gpu", Device: name}
}

func share(node int, name, memory string) resourceapi.DeviceRequestAllocationResult {
	r := device(node, name)
	id := types.UID(memory)
	r.ShareID, r.ConsumedCapacity = &id, map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
	return r
}

func claim(namespace, name string, results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-3 * time.Hour)),
	}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
	}}}
	if len(results) > 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name + "-0", UID: types.UID(name)}}
	}
	return c
}

// hostile is a name that no API server accepts.
const hostile = `<img src=x onerror=document.body.remove()>`

// busy is a cluster with a GPU in each state.
func busy(t *testing.T, extra ...*resourceapi.ResourceClaim) *fleetserver.Server {
	t.Helper()
	s, err := fleetserver.New()
	must(t, err)
	for node, profile := range []string{"hgx-h100", "hgx-h100", "hgx-h200", "l40s-4", "hgx-b200", "a30"} {
		must(t, s.AddNode(node, profile))
	}
	s.Add("deviceclasses", &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`}}},
	}})
	waits := claim("training", "llama-eval")
	waits.Spec.Devices.Requests[0].Exactly.Count = 16
	waits.CreationTimestamp = metav1.NewTime(time.Now().Add(-7 * time.Minute))
	notebook := claim("notebooks", "ada", share(0, "gpu-0000-43-00-0", "40Gi"))
	notebook.Status.ReservedFor = nil
	for _, c := range append([]*resourceapi.ResourceClaim{
		waits, notebook,
		claim("inference", "chat", device(0, "gpu-0000-1b-00-0-mig-3g-40gb-4"), device(0, "gpu-0000-1b-00-0-mig-1g-10gb-0")),
		claim("inference", "embed", device(0, "gpu-0000-1b-00-0-mig-2g-20gb-2")),
		claim("notebooks", "grace", share(0, "gpu-0000-43-00-0", "20Gi")),
		claim("training", "llama-0", device(0, "nvlink-4-0000-9d-00-0")),
		claim("training", "llama-1", device(2, "nvlink-8-0000-19-00-0")),
		claim("research", "sweep-1", device(1, "gpu-0000-1b-00-0")),
		claim("research", "sweep-2", device(1, "gpu-0000-43-00-0")),
		claim("inference", "vision", share(3, "gpu-0000-38-00-0", "12Gi")),
		claim("inference", "speech", share(3, "gpu-0000-38-00-0", "24Gi")),
		claim("research", "ablate", device(4, "gpu-0000-19-00-0-mig-4g-90gb-0")),
	}, extra...) {
		s.Add("resourceclaims", c)
	}
	return s
}

// sick gives a GPU and its partitions a fault that this version does not know.
func sick(s *fleetserver.Server, node int, profile, name string) {
	taint(s, node, profile, name, resourceapi.DeviceTaint{Key: "gpu.nvidia.com/unhealthy", Value: "row-remap", Effect: "NoSchedule"})
}

func TestPage_BusyCluster_EqualsLs(t *testing.T) {
	p := serve(t, busy(t, claim("inference", hostile, device(1, "gpu-0000-52-00-0")), claim("constructor", "__proto__", device(1, "gpu-0000-61-00-0"))))
	p.open(1440, 1000)
	p.wait(shown)
	want := p.ls()
	got := p.shownGPUs()
	if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 {
		t.Errorf("(-kubectl gpu ls -o json, +model of the page):\n%s", diff)
	}
	// The page uses the words of the table.
	table, err := command(p.kubeconfig, "ls", "--no-headers", "-o", "jsonpath={range .items[*]}{.node} {.name}{\"\\n\"}{end}").Output()
	must(t, err)
	cells := eval[[]string](p, `[...document.querySelectorAll('[data-node] [data-gpu]')].map((a) => a.closest('[data-node]').dataset.node + ' ' + a.dataset.gpu)`)
	if got := strings.Join(cells, "\n"); got != strings.TrimSpace(string(table)) {
		t.Errorf("the map has the GPUs\n%s\nand ls\n%s", got, table)
	}
	labels := strings.Join(eval[[]string](p, `[...document.querySelectorAll('[data-gpu]')].map((a) => a.ariaLabel)`), "\n")
	for _, text := range []string{
		"gpu-0000-1b-00-0: 3 partitions, ok, 1g.10gb: inference/chat, 2g.20gb: inference/embed, 3g.40gb: inference/chat",
		"gpu-0000-43-00-0: 2 shares, ok, 40 GiB: notebooks/ada, 20 GiB: notebooks/grace", "group: training/llama-0", "whole GPU: inference/" + hostile,
	} {
		if !strings.Contains(labels, text) {
			t.Errorf("no label has %q:\n%s", text, labels)
		}
	}
	if n := eval[int](p, `document.querySelectorAll('img').length`); n != 0 {
		t.Error("a claim's name became an element")
	}
	if got := eval[string](p, `(() => { try { document.body.innerHTML = '<b>x</b>'; return 'set'; } catch (e) { return e.name; } })()`); got != "TypeError" {
		t.Errorf("the policy lets text become HTML: %s", got)
	}
	p.complaints = nil // The line above is one.
}

func TestPage_ClaimMade_AppearsWithinASecond(t *testing.T) {
	p := serve(t, busy(t))
	p.open(1200, 900)
	p.wait(shown)
	for i, name := range []string{"first", "second", "third"} {
		began := time.Now()
		_, err := p.client.ResourceV1().ResourceClaims("new").Create(t.Context(), claim("new", name, device(1, fmt.Sprintf("gpu-0000-%s-00-0", []string{"52", "61", "9d"}[i]))), metav1.CreateOptions{})
		must(t, err)
		p.wait(fmt.Sprintf(`[...document.querySelectorAll('[data-gpu]')].some((a) => a.ariaLabel.includes('new/%s'))`, name))
		took := time.Since(began)
		t.Logf("claim %d is on the page after %d ms", i+1, took.Milliseconds())
		if took > time.Second {
			t.Errorf("claim %d appeared after %s", i+1, took)
		}
	}
	must(t, p.client.ResourceV1().ResourceClaims("new").Delete(t.Context(), "first", metav1.DeleteOptions{}))
	p.wait(`![...document.querySelectorAll('[data-gpu]')].some((a) => a.ariaLabel.includes('new/first'))`)
}

func TestPage_Keyboard_ReachesClaimAndReturns(t *testing.T) {
	p := serve(t, busy(t))
	p.open(1200, 900)
	p.wait(shown)
	focused := func() string {
		return eval[string](p, `document.activeElement.ariaLabel ?? document.activeElement.textContent`)
	}
	p.run(chromedp.Focus(chromedp.CSS(`[data-gpu][tabindex="0"]`)), chromedp.KeyEvent(kb.ArrowRight))
	if got := focused(); !strings.HasPrefix(got, "gpu-0000-43-00-0: 2 shares") {
		t.Errorf("the right arrow leads to %q", got)
	}
	p.run(chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.Home))
	if got := focused(); !strings.HasPrefix(got, "gpu-0000-1b-00-0: whole") {
		t.Errorf("the down arrow and Home lead to %q", got)
	}
	p.run(chromedp.KeyEvent(kb.Enter))
	p.wait(`document.querySelector('#panel h2')?.textContent === 'gpu-0000-1b-00-0'`)
	p.run(chromedp.Click(chromedp.CSS(`#panel a[href^="#claim"]`)))
	p.wait(`document.querySelector('#panel h2')?.textContent === 'research/sweep-1'`)
	p.run(chromedp.Click(chromedp.CSS(`#panel a[href^="#pod"]`)))
	p.wait(`document.querySelector('#panel .kind')?.textContent === 'Pod'`)
	p.run(chromedp.KeyEvent(kb.Escape))
	p.wait(`document.getElementById('panel').hidden`)
	p.run(chromedp.KeyEvent("/"))
	if got := eval[string](p, `document.activeElement.id`); got != "search" {
		t.Errorf("the slash leads to %q", got)
	}
	seek := func(text string) {
		eval[bool](p, fmt.Sprintf(`((s) => { s.value = %q; return s.dispatchEvent(new Event('input')); })(document.getElementById('search'))`, text))
	}
	seek("namespace:training")
	p.wait(`document.getElementById('found').textContent.startsWith('12 of ')`)
	seek("")
	p.run(chromedp.Click(chromedp.CSS(`#tab-pending`)))
	p.wait(`document.querySelector('.cards .summary')?.textContent.includes('waits')`)
	seek("namespace:absent")
	p.wait(`document.querySelector('.cards .empty')?.textContent.startsWith('The search matches no waiting claim')`)
}
