// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/pkg/show/view"
)

// plugins is a cluster whose nodes have one GPU with a utilization.
type plugins struct {
	reads [][]string
	fail  error
	hang  bool
}

func (p *plugins) measure(ctx context.Context, nodes []string) (use map[view.GPUName]view.GPUUse, missing map[string]string, err error) {
	p.reads = append(p.reads, nodes)
	if p.hang {
		<-ctx.Done()
		missing = map[string]string{}
		for _, n := range nodes {
			missing[n] = "its plugin does not answer"
		}
		return nil, missing, nil
	}
	use = map[view.GPUName]view.GPUUse{}
	for _, n := range nodes {
		use[view.GPUName{Node: n, Name: "gpu-0"}] = view.GPUUse{Utilization: new(float64(len(p.reads)) / 10)}
	}
	return use, nil, p.fail
}

func (m *meter) mustAsk(t *testing.T, nodes ...string) useAnswer {
	t.Helper()
	out, err := m.ask(t.Context(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestMeter_PagesAskOften_ReadsEachNodeSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugins{}
		m := &meter{measure: p.measure, nodes: map[string]measured{}}
		began := time.Now()
		for range 20 {
			for _, pages := range [][]string{{"n1", "n2"}, {"n2", "n3"}} {
				if got := m.mustAsk(t, pages...); len(got.Nodes) != 2 || got.Nodes["n2"]["gpu-0"].Utilization == nil {
					t.Fatalf("%+v", got)
				}
			}
			time.Sleep(time.Second)
		}
		count := map[string]int{}
		for _, nodes := range p.reads {
			for _, n := range nodes {
				count[n]++
			}
		}
		seconds := int(time.Since(began) / time.Second)
		for n, reads := range count {
			if reads > seconds/8+1 {
				t.Errorf("%s is read %d times in %d s", n, reads, seconds)
			}
		}
		if len(p.reads) > seconds {
			t.Errorf("%d readings in %d s", len(p.reads), seconds)
		}
		time.Sleep(time.Minute)
		m.mustAsk(t, "n9")
		if len(m.nodes) != 1 {
			t.Errorf("figures of %d nodes are kept", len(m.nodes))
		}
	})
}

func TestMeter_RefusedOrHanging_HasNoFigures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugins{}
		m := &meter{measure: p.measure, nodes: map[string]measured{}}
		m.mustAsk(t, "n1")
		time.Sleep(10 * time.Second)
		p.hang = true
		began := time.Now()
		if got := m.mustAsk(t, "n1"); len(got.Nodes) != 0 || got.Missing["n1"] == "" || time.Since(began) > measureLimit+measurePause {
			t.Errorf("after %s: %+v", time.Since(began), got)
		}
		time.Sleep(10 * time.Second)
		p.hang, p.fail = false, errors.New("you may not")
		reads := len(p.reads)
		for range 10 {
			if got := m.mustAsk(t, "n1"); got.Refused != "you may not" || len(got.Nodes) != 0 {
				t.Errorf("%+v", got)
			}
			time.Sleep(5 * time.Second)
		}
		if len(p.reads)-reads != 1 {
			t.Errorf("%d readings follow a refusal", len(p.reads)-reads)
		}
		time.Sleep(refusedPause)
		p.fail = nil
		if got := m.mustAsk(t, "n1"); got.Refused != "" || len(got.Nodes) != 1 {
			t.Errorf("after the right was given: %+v", got)
		}
	})
}

func TestMeter_ManyNodesOrNone_IsRefused(t *testing.T) {
	p := &plugins{}
	h := NewHandler("T", newTestCluster(), nil, p.measure)
	many := make([]string, maxMeasured+1)
	for i := range many {
		many[i] = fmt.Sprint("node=n", i)
	}
	for _, query := range []string{"", strings.Join(many, "&")} {
		if w := get(h, "/T/api/use?"+query); w.Code != 400 {
			t.Errorf("%q: code %d", query, w.Code)
		}
	}
	if w := get(h, "/T/api/use?"+strings.Join(many[1:], "&")); w.Code != 200 || len(p.reads) != 1 || !slices.IsSorted(p.reads[0]) || len(p.reads[0]) != maxMeasured {
		t.Errorf("code %d, reads %q", w.Code, p.reads)
	}
}
