// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package enforcement

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/controller"
)

// chartConfig returns the webhook configuration of the chart, or of an earlier one whose budgets have a path.
func chartConfig(path *string) *admissionv1.ValidatingWebhookConfiguration {
	out := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "config"}}
	for name, path := range map[string]*string{"parameters": new(controller.AdmitPath), "advice": new(controller.AdvisePath), "budget": path, "budget-pods": path} {
		w := admissionv1.ValidatingWebhook{Name: name + "." + slicetest.Driver}
		w.ClientConfig.Service = &admissionv1.ServiceReference{Namespace: "ns", Name: "webhook", Path: path}
		out.Webhooks = append(out.Webhooks, w)
	}
	return out
}

// startReviewPath runs an instance until the test ends.
func (e *env) startReviewPath(t *testing.T) *ReviewPath {
	p, stop := e.startReviewPathUntil()
	t.Cleanup(stop)
	return p
}

func (e *env) startReviewPathUntil() (p *ReviewPath, stop func()) {
	p = NewReviewPath(e.Client(), slicetest.Driver, "config")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			e.T.Error(err)
		}
	})
	return p, sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
}

// reviewPath returns the path that API servers use for reviews under budgets.
func (e *env) reviewPath(t *testing.T) string {
	t.Helper()
	found := map[string]bool{}
	for _, w := range get[admissionv1.ValidatingWebhookConfiguration](e, "validatingwebhookconfigurations", "config").Webhooks {
		path := pathOf(w.ClientConfig.Service)
		switch w.Name {
		case "budget." + slicetest.Driver, "budget-pods." + slicetest.Driver:
			found[path] = true
		default:
			if path != controller.AdmitPath && path != controller.AdvisePath {
				t.Errorf("%s has the path %s", w.Name, path)
			}
		}
	}
	if len(found) != 1 {
		t.Errorf("the webhooks of budgets have the paths %v", found)
	}
	for path := range found {
		return path
	}
	return ""
}

func TestReviewPath_AnyConfiguration_GetsASecretOne(t *testing.T) {
	for name, path := range map[string]*string{
		"none": nil, "the chart's": new("/budget"), "a short one": new("/budget/abc"), "another": new("/x"), "no hexadecimal": new("/budget/" + strings.Repeat("g", 2*pathBytes)),
		"one of two halves": new("/budget/" + strings.Repeat("0", pathBytes) + "/" + strings.Repeat("0", pathBytes)),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, chartConfig(path))
				p, stop := e.startReviewPathUntil()
				defer stop()
				pass(time.Second)
				now := e.reviewPath(t)
				if !secretPath(now) || !p.accepts(now) || p.Synced() != nil || path != nil && p.accepts(*path) {
					t.Errorf("the path is %s, accepted %v, synced: %v", now, p.accepts(now), p.Synced())
				}
				for step := range strings.SplitSeq(now[1:], "/") { // As the API validates it.
					if problems := utilvalidation.IsDNS1123Subdomain(step); len(problems) > 0 {
						t.Errorf("%s: %v", now, problems)
					}
				}
				e.Written()
				pass(24 * time.Hour)
				if writes := e.Written(); len(writes) > 0 {
					t.Errorf("without budgets, failures or changes, a day writes %v", writes)
				}
				// An upgrade of the chart.
				config := get[admissionv1.ValidatingWebhookConfiguration](e, "validatingwebhookconfigurations", "config")
				for i, w := range chartConfig(path).Webhooks {
					config.Webhooks[i] = w
				}
				e.Put(config)
				synctest.Wait()
				if got := e.reviewPath(t); got != now || !p.accepts(now) {
					t.Errorf("after an upgrade the path is %s, want %s", got, now)
				}
			})
		})
	}
}

// TestReviewPath_Renewed_EveryInstanceAcceptsItInTime has an API server that uses a path from the moment on at which it is in the
// configuration, and another one that is late.
func TestReviewPath_Renewed_EveryInstanceAcceptsItInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, chartConfig(nil))
		var instances []*ReviewPath
		for range 3 {
			p, stop := e.startReviewPathUntil()
			defer stop()
			instances = append(instances, p)
		}
		pass(renewPause + announceFor + time.Second)
		used := map[string]time.Time{}
		last := ""
		for second := range 1000 {
			path := e.reviewPath(t)
			if path != last {
				used[last], last = time.Now(), path
			}
			for i, p := range instances {
				for path, until := range used {
					if late := time.Since(until); p.accepts(path) != (path != "" && late < acceptFor) {
						t.Errorf("second %d, instance %d: a path that was renewed before %v: accepted %v", second, i, late, p.accepts(path))
					}
				}
				if !p.accepts(path) {
					t.Errorf("second %d, instance %d does not accept the path", second, i)
				}
			}
			if second%10 == 0 {
				instances[second/10%3].Renew()
			}
			pass(time.Second)
		}
		if n := len(used); n < 10 || n > 18 {
			t.Errorf("%d paths in 1000 s of failures", n)
		}
		for i, p := range instances {
			if n := len(p.accepted); n > 4 {
				t.Errorf("instance %d remembers %d paths", i, n)
			}
		}
	})
}

// TestReviewPath_Renewed_EveryInstanceKnowsItBefore has an instance that sees the configuration late: before the API servers use the
// new path, but after it was announced.
func TestReviewPath_Renewed_EveryInstanceKnowsItBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, chartConfig(nil))
		p, stop := e.startReviewPathUntil()
		defer stop()
		pass(time.Hour)
		before := e.reviewPath(t)
		p.Renew()
		pass(announceFor / 2)
		late := NewReviewPath(e.Client(), slicetest.Driver, "config")
		late.observe(get[admissionv1.ValidatingWebhookConfiguration](e, "validatingwebhookconfigurations", "config"))
		if e.reviewPath(t) != before {
			t.Error("API servers use the new path at once")
		}
		pass(announceFor)
		if now := e.reviewPath(t); now == before || !late.accepts(now) || !late.accepts(before) {
			t.Errorf("the path is %s, accepted %v; the old one: %v", now, late.accepts(now), late.accepts(before))
		}
	})
}

// TestReviewPath_Restart_NoReviewIsRefused replaces the only instance, which then renews the path.
func TestReviewPath_Restart_NoReviewIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, chartConfig(nil))
		_, stop := e.startReviewPathUntil()
		pass(time.Hour)
		stop()
		before := e.reviewPath(t)
		p, stop := e.startReviewPathUntil()
		defer stop()
		synctest.Wait()
		for range 60 {
			if now := e.reviewPath(t); p.Synced() == nil && !p.accepts(now) {
				t.Error("the path of the configuration is not accepted")
			}
			pass(100 * time.Millisecond)
		}
		if e.reviewPath(t) == before {
			t.Error("the path was not renewed, and API servers showed it in errors while no instance ran")
		}
	})
}

func TestReviewPath_WriteFails_TriedAgainAndOldOneAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, chartConfig(nil))
		p, stop := e.startReviewPathUntil()
		defer stop()
		pass(time.Hour)
		before, failures := e.reviewPath(t), 3
		e.Lock()
		e.Fault = func(r request) (error, error) {
			if r.Writes() && failures > 0 {
				failures--
				return errors.New("connection reset"), nil
			}
			return nil, nil
		}
		e.Unlock()
		p.Renew()
		pass(time.Second)
		if !p.accepts(before) {
			t.Error("the path is not accepted while no other one is written")
		}
		pass(time.Minute)
		if now := e.reviewPath(t); now == before || p.accepts(before) || !p.accepts(now) {
			t.Errorf("the path is %s, accepted %v; the old one: %v", now, p.accepts(now), p.accepts(before))
		}
	})
}

// TestReviewPath_ConfigurationGone_NothingIsAccepted also has a configuration without webhooks of budgets.
func TestReviewPath_ConfigurationGone_NothingIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, chartConfig(nil))
		p, stop := e.startReviewPathUntil()
		defer stop()
		pass(time.Minute)
		before := e.reviewPath(t)
		e.Remove("validatingwebhookconfigurations", "config")
		pass(acceptFor + time.Second)
		if p.accepts(before) || p.accepts("") || p.accepts(Path) {
			t.Error("a path is accepted")
		}
		config := chartConfig(nil)
		config.Webhooks = config.Webhooks[:0]
		e.Written()
		e.Put(config)
		pass(time.Minute)
		if writes := e.Written(); len(writes) > 0 || p.accepts("") {
			t.Errorf("%v", writes)
		}
	})
}

// TestReviewPath_ReviewWithoutAnswer_Renews has reviews whose clients may have had no answer, on the path and on another one.
func TestReviewPath_ReviewWithoutAnswer_Renews(t *testing.T) {
	for name, c := range map[string]struct {
		review  func(r *http.Request, cancel func())
		renewed bool
	}{
		"answered":             {func(*http.Request, func()) {}, false},
		"the client gave up":   {func(_ *http.Request, cancel func()) { cancel() }, true},
		"it took long":         {func(*http.Request, func()) { time.Sleep(lateReview) }, true},
		"the connection broke": {func(*http.Request, func()) { panic(http.ErrAbortHandler) }, true},
	} {
		for _, genuine := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, genuine %v", name, genuine), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newEnv(t, chartConfig(nil))
					p, stop := e.startReviewPathUntil()
					defer stop()
					pass(time.Hour)
					path := e.reviewPath(t)
					before := path
					if !genuine {
						path = newPath()
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					func() {
						defer func() { _ = recover() }() // The server does so.
						p.Watch(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { c.review(r, cancel) })).
							ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, path, nil))
					}()
					pass(announceFor + acceptFor + time.Second)
					if now := e.reviewPath(t); (now != before) != (c.renewed && genuine) || p.accepts(before) != (now == before) {
						t.Errorf("renewed: %v; the old one is accepted: %v", now != before, p.accepts(before))
					}
				})
			})
		}
	}
}

// TestReviewPath_Budgets_LeaderRenewsItRegularly has a leader and another instance.
func TestReviewPath_Budgets_LeaderRenewsItRegularly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, append(machine(t, "hgx-h100", "n1", 0), chartConfig(nil))...)
		for _, leads := range []bool{true, false} {
			p, stopPath := e.startReviewPathUntil()
			defer stopPath()
			_, stop := e.start(leads, p)
			defer stop()
		}
		pass(time.Hour)
		count := func(d time.Duration) int {
			paths := map[string]bool{}
			for range int(d / (10 * time.Second)) {
				paths[e.reviewPath(t)] = true
				pass(10 * time.Second)
			}
			return len(paths)
		}
		if n := count(time.Hour); n != 1 {
			t.Errorf("%d paths in an hour without a budget", n)
		}
		e.PutBudget("team-a", "2")
		if n := count(time.Hour); n < 11 || n > 14 {
			t.Errorf("%d paths in an hour with a budget", n)
		}
	})
}
