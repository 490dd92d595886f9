// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"

	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// versionServer is a /version with a clock.
type versionServer struct {
	text  string
	err   error
	hang  bool
	clock time.Time
	reads int
}

func (s *versionServer) version() version {
	return version{now: func() time.Time { return s.clock }, server: s}
}

func (s *versionServer) ServerVersionWithContext(ctx context.Context) (*apiversion.Info, error) {
	s.reads++
	if _, limited := ctx.Deadline(); !limited {
		return nil, errors.New("the read has no limit")
	}
	if s.hang {
		return nil, context.DeadlineExceeded
	}
	return &apiversion.Info{GitVersion: s.text}, s.err
}

type lockedServer struct {
	mu *sync.Mutex
	*versionServer
}

func (l lockedServer) ServerVersionWithContext(ctx context.Context) (*apiversion.Info, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.versionServer.ServerVersionWithContext(ctx)
}

var bothFeatures = schedulerfault.Features{Counters: true, Shares: true}

func (v *version) leftOut() schedulerfault.Features {
	var out schedulerfault.Features
	for _, f := range v.faults(bothFeatures) {
		out = out.Or(f.Without)
	}
	return out
}

// TestVersion_Answers_LeaveOutTheSafeFeatures has an API server that answers, fails, lies, hangs and is upgraded. Each step is
// one read, the given time after the last.
func TestVersion_Answers_LeaveOutTheSafeFeatures(t *testing.T) {
	const soon = versionInterval
	none := schedulerfault.Features{}
	type read struct {
		after  time.Duration
		answer string // "!" fails, "..." hangs.
		want   schedulerfault.Features
	}
	for name, steps := range map[string][]read{
		"right":             {{0, "v1.36.3", none}},
		"wrong":             {{0, "v1.36.1", bothFeatures}},
		"vendors":           {{0, "v1.36.1-gke.100", bothFeatures}},
		"k3s":               {{0, "v1.36.1+k3s1", bothFeatures}},
		"vendor, right":     {{0, "v1.36.3-gke.100", none}},
		"prerelease":        {{0, "v1.36.2-rc.0", bothFeatures}},
		"never known":       {{0, "!", bothFeatures}, {soon, "!", bothFeatures}, {10 * time.Hour, "...", bothFeatures}},
		"known at last":     {{0, "!", bothFeatures}, {soon, "...", bothFeatures}, {soon, "v1.37.1", none}},
		"no version":        {{0, "v0.0.0-master+$Format:%H$", bothFeatures}},
		"empty":             {{0, "", bothFeatures}},
		"no longer read":    {{0, "v1.37.1", none}, {soon, "!", none}, {10 * time.Hour, "...", none}},
		"no longer, wrong":  {{0, "v1.36.1", bothFeatures}, {soon, "!", bothFeatures}, {10 * time.Hour, "...", bothFeatures}},
		"later no version":  {{0, "v1.37.1", none}, {soon, "nonsense", bothFeatures}, {soon, "v1.37.1", bothFeatures}, {time.Hour, "v1.37.1", none}},
		"downgraded":        {{0, "v1.37.1", none}, {soon, "v1.36.0", bothFeatures}},
		"upgraded":          {{0, "v1.36.1", bothFeatures}, {soon, "v1.36.3", bothFeatures}, {30 * time.Minute, "v1.36.3", bothFeatures}, {30 * time.Minute, "v1.36.3", none}},
		"upgraded by minor": {{0, "v1.36.1", bothFeatures}, {soon, "v1.37.1", bothFeatures}, {time.Hour, "v1.37.1", none}},
		"servers in turn": {
			{0, "v1.36.3", none}, {soon, "v1.36.1", bothFeatures}, {soon, "v1.36.3", bothFeatures}, {40 * time.Minute, "v1.36.1", bothFeatures},
			{40 * time.Minute, "v1.36.3", bothFeatures}, {40 * time.Minute, "v1.36.3", none},
		},
		"in turn, and the wrong one last": {{0, "v1.36.1", bothFeatures}, {2 * time.Hour, "v1.36.3", none}, {2 * time.Hour, "v1.36.1", bothFeatures}},
		"reported only":                   {{0, "v1.36.2", none}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &versionServer{clock: time.Unix(1e9, 0)}
			v := s.version()
			if got := v.leftOut(); got != bothFeatures {
				t.Errorf("before the first read: left out %s", got)
			}
			for i, step := range steps {
				s.clock = s.clock.Add(step.after)
				s.text, s.err, s.hang = step.answer, nil, step.answer == "..."
				if step.answer == "!" {
					s.err = errors.New("forbidden")
				}
				v.update(t.Context())
				if got := v.leftOut(); s.reads != i+1 || got != step.want {
					t.Errorf("read %d of %d, %q: left out %s, want %s", s.reads, i+1, step.answer, got, step.want)
				}
			}
		})
	}
}

func TestVersion_Set_IsNotRead(t *testing.T) {
	for text, want := range map[string]schedulerfault.Features{"v1.36.3": {}, "v1.36.1": bothFeatures} {
		s := &versionServer{text: "v1.36.2"}
		v := s.version()
		v.set, _ = schedulerfault.Parse(text)
		v.update(t.Context())
		if got := v.leftOut(); got != want || s.reads != 0 {
			t.Errorf("set to %s: left out %s after %d reads, want %s", text, got, s.reads, want)
		}
	}
}

func TestVersion_ReadFails_PausesGrow(t *testing.T) {
	s := &versionServer{err: errors.New("forbidden"), clock: time.Unix(1e9, 0)}
	v := s.version()
	for range 3600 {
		v.update(t.Context())
		s.clock = s.clock.Add(time.Second)
	}
	if s.reads < 10 || s.reads > 25 {
		t.Errorf("%d reads in an hour", s.reads)
	}
	s.err, s.text = nil, "v1.36.3"
	s.clock = s.clock.Add(versionInterval)
	v.update(t.Context())
	if v.leftOut() != (schedulerfault.Features{}) || !v.changed() && v.estimated == nil {
		t.Error("an answer after failures has no effect")
	}
}

// reports collects what a Publisher reports.
type reports struct {
	mu   sync.Mutex
	errs []error
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *reports) texts() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range r.errs {
		out = append(out, string(claimerror.ReasonOf(err))+": "+err.Error())
	}
	return out
}

// TestPublisher_SchedulerFault_LeavesOutDevicesAndReportsOnce has an API server that is upgraded.
func TestPublisher_SchedulerFault_LeavesOutDevicesAndReportsOnce(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	s := &versionServer{text: "v1.36.1", clock: time.Unix(1e9, 0)}
	var mu sync.Mutex
	tick := func(d time.Duration, text string) {
		mu.Lock()
		defer mu.Unlock()
		s.clock, s.text = s.clock.Add(d), text
	}
	p.version = version{
		now: func() time.Time { mu.Lock(); defer mu.Unlock(); return s.clock }, server: lockedServer{&mu, s},
	}
	var r reports
	p.o.Reports = notifytest.Reporter(r.add)
	p.Go(p.Run)
	p.expect("gpu-0")
	if n := p.Writes.Load(); n != 1 {
		t.Errorf("%d writes: the monitor was there for a moment", n)
	}
	got := r.texts()
	if len(got) != 3 {
		t.Fatalf("reported %q, want one for each fault", got)
	}
	for i, words := range [][]string{{"crashes the scheduler", "1.36.1", "1.36.2 or newer"}, {"a GPU and its partitions", "1.36.2 or newer"}, {"firstAvailable", "1.36.3 or newer"}} {
		for _, word := range append(words, "SchedulerFault: ", "schedulerVersion (--scheduler-version)") {
			if !strings.Contains(got[i], word) {
				t.Errorf("%q does not say %q", got[i], word)
			}
		}
		if len(got[i]) > 1024 {
			t.Errorf("%q exceeds the limit of Events", got[i])
		}
	}
	// The API server is upgraded, and the scheduler later.
	tick(versionInterval, "v1.36.3")
	p.Eventually("the second read", func() (bool, string) { mu.Lock(); defer mu.Unlock(); return s.reads >= 2, fmt.Sprint(s.reads) })
	p.triggered.Fire()
	p.expect("gpu-0")
	tick(versionSettles, "v1.36.3")
	p.expect("gpu-0", "monitor-0")
	if got := r.texts(); len(got) != 3 {
		t.Errorf("reported again: %q", got)
	}
}

func TestPublisher_VersionUnknown_ReportsAfterSomeReads(t *testing.T) {
	t.Parallel()
	p := newTestPublisher(t, features{})
	s := &versionServer{err: errors.New("forbidden"), clock: time.Unix(1e9, 0)}
	p.version = s.version()
	var r reports
	p.o.Reports = notifytest.Reporter(r.add)
	for i := range unknownReads {
		if got := p.offered(allFeatures); got.counters || got.sharedDevices || len(r.texts()) != 0 {
			t.Errorf("after %d reads: %+v, reported %q", i, got, r.texts())
		}
		p.version.update(t.Context())
		s.clock = s.clock.Add(versionInterval)
	}
	if !p.version.changed() {
		t.Error("the failed reads do not cause a build, which would report them")
	}
	p.offered(allFeatures)
	p.offered(allFeatures)
	if got := r.texts(); len(got) != 1 || !strings.Contains(got[0], "forbidden") || !strings.Contains(got[0], "schedulerVersion") {
		t.Errorf("reported %q", got)
	}
}

// TestPublisher_ServerWithoutTheFeatures_ReportsNothing has a server of a wrong version whose feature gates are off.
func TestPublisher_ServerWithoutTheFeatures_ReportsNothing(t *testing.T) {
	p := newTestPublisher(t, features{})
	p.version = (&versionServer{text: "v1.36.1"}).version()
	p.version.update(t.Context())
	var r reports
	p.o.Reports = notifytest.Reporter(r.add)
	if got := p.offered(features{taints: true}); got != (features{taints: true}) || len(r.texts()) != 0 {
		t.Errorf("%+v, reported %q", got, r.texts())
	}
}

// TestNode_SchedulerFaultUnderClaims_KeepsHeldDevicesUntilRelease leaves out features while claims hold devices.
func TestNode_SchedulerFaultUnderClaims_KeepsHeldDevicesUntilRelease(t *testing.T) {
	reduced := allFeatures.without(bothFeatures)
	shared := plan.Device{Kind: gpu.KindGPU, Name: asWhole, PCIAddress: at, UUID: "GPU-a", ShareID: "share"}
	for name, c := range map[string]struct {
		device plan.Device
		want   string // The devices; a star allows several allocations.
	}{
		"nothing":             {plan.Device{}, asWhole},
		"a partition":         {onPartition("MIG-4").Devices[0], part},
		"a share":             {shared, asWhole + "*"},
		"a whole GPU":         {plan.Device{Kind: gpu.KindGPU, Name: asWhole, PCIAddress: at, UUID: "GPU-a"}, asWhole},
		"a monitor":           {plan.Device{Kind: gpu.KindMonitor, Name: "monitor-0000-1b-00-0", PCIAddress: at, UUID: "GPU-a", Admin: true}, asWhole + " monitor-0000-1b-00-0*"},
		"a share, to monitor": {plan.Device{Kind: gpu.KindGPU, Name: asWhole, PCIAddress: at, UUID: "GPU-a", ShareID: "share", Admin: true}, asWhole},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, sharingAs(sharing.Node{MPS: true}))
			if err := n.Found(t.Context(), cuttable(false), nil); err != nil {
				t.Fatal(err)
			}
			published := func() string {
				built, ok := n.build(reduced)
				if !ok {
					t.Fatal("nothing is built")
				}
				var out []string
				for _, s := range built {
					if len(s.SharedCounters) > 0 {
						t.Errorf("counters: %v", s.SharedCounters)
					}
					for _, d := range s.Devices {
						text := d.Name
						if d.AllowMultipleAllocations != nil {
							text += "*"
						}
						if len(d.ConsumesCounters) > 0 {
							t.Errorf("%s consumes counters", d.Name)
						}
						out = append(out, text)
					}
				}
				return strings.Join(out, " ")
			}
			if c.device.Name != "" {
				n.o.Records = held{plans: []plan.Plan{{Claim: plan.Claim{Namespace: "ns", Name: "c", UID: "u"}, Devices: []plan.Device{c.device}}}}
			}
			if got := published(); got != c.want {
				t.Errorf("published %q, want %q", got, c.want)
			}
			n.fired()
			n.o.Records = held{}
			n.Released()
			if fired := n.fired(); fired != (c.want != asWhole) {
				t.Errorf("the release triggers a build: %v", fired)
			}
			if got := published(); got != asWhole {
				t.Errorf("published %q after the release, want %q", got, asWhole)
			}
		})
	}
}
