// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// server answers the requests of a follower one after the other, with lists of claims and watches. It repeats the last.
type server struct {
	lists   []any
	watches []any
	watched []string
}

func next[T any](answers *[]any) (out T, err error) {
	first := (*answers)[0]
	if len(*answers) > 1 {
		*answers = (*answers)[1:]
	}
	if err, failed := first.(error); failed {
		return out, err
	}
	if make, ok := first.(func() T); ok {
		return make(), nil
	}
	out, _ = first.(T)
	return out, nil
}

func (s *server) resource() Resource {
	return Resource{Name: Claims, Scope: " of all namespaces", Effect: "holders are not shown", Source: s}
}

func (s *server) ListWithContext(context.Context, metav1.ListOptions) (runtime.Object, error) {
	names, err := next[[]string](&s.lists)
	list := &resourceapi.ResourceClaimList{ListMeta: metav1.ListMeta{ResourceVersion: "5"}}
	for _, name := range names {
		if more, ok := strings.CutPrefix(name, "continue "); ok {
			list.Continue = more
			continue
		}
		list.Items = append(list.Items, *heldClaim(name, held("n1/gpu", "gpu-0000-1b-00-0")))
	}
	return list, err
}

func (s *server) WatchWithContext(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.watched = append(s.watched, o.ResourceVersion)
	return next[watch.Interface](&s.watches)
}

// events makes a watch with events that stays open. It is made during the test, whose clock must know its channel.
func events(all ...watch.Event) func() watch.Interface {
	return func() watch.Interface {
		w := watch.NewFakeWithChanSize(len(all), false)
		for _, e := range all {
			w.Action(e.Type, e.Object)
		}
		return w
	}
}

func versioned(name, version string) *resourceapi.ResourceClaim {
	c := heldClaim(name, held("n1/gpu", "gpu-0000-1b-00-0"))
	c.ResourceVersion = version
	return c
}

// ended makes a watch that the server ends after the events.
func ended(all ...watch.Event) func() watch.Interface {
	return func() watch.Interface {
		w := events(all...)()
		w.Stop()
		return w
	}
}

func TestFollow_Answers_ClaimsAndNotes(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no"))
	missing := apierrors.NewNotFound(schema.GroupResource{}, "")
	expired := apierrors.NewResourceExpired("old").Status()
	for name, c := range map[string]struct {
		server server
		with   func(*Resource)
		after  time.Duration
		claims []string
		notes  string
		// watched are the versions of the watches.
		watched []string
	}{
		"pages, then changes": {
			server: server{lists: []any{[]string{"a", "continue 2"}, []string{"b"}}, watches: []any{events(
				watch.Event{Type: watch.Added, Object: versioned("c", "6")}, watch.Event{Type: watch.Deleted, Object: versioned("a", "7")})}},
			claims: []string{"team-a/b", "team-a/c"}, watched: []string{"5"},
		},
		"a watch expires": {
			server: server{lists: []any{[]string{"a"}, []string{"b"}}, watches: []any{
				events(watch.Event{Type: watch.Error, Object: &expired}), events()}},
			claims: []string{"team-a/b"}, watched: []string{"5", "5"},
		},
		"a watch ends and goes on": {
			server: server{lists: []any{[]string{"a"}}, watches: []any{
				ended(watch.Event{Type: watch.Modified, Object: versioned("a", "9")}), events()}},
			claims: []string{"team-a/a"}, watched: []string{"5", "9"},
		},
		"watches end at once": {
			server: server{lists: []any{[]string{"a"}}, watches: []any{ended()}}, after: time.Second,
			claims: []string{"team-a/a"}, watched: []string{"5"}, notes: "ResourceClaims may be out of date, and are read again: the API server ended the watch at once.",
		},
		"a list fails first": {
			server: server{lists: []any{errors.New("connection refused"), []string{"a"}}, watches: []any{events()}}, after: retryPause,
			claims: []string{"team-a/a"}, watched: []string{"5"},
		},
		"a list fails": {
			server: server{lists: []any{errors.New("connection refused")}}, after: 10 * retryPause,
			notes: "ResourceClaims may be out of date, and are read again: connection refused.",
		},
		"no right to list": {
			server: server{lists: []any{forbidden}}, notes: "You may not list ResourceClaims of all namespaces: holders are not shown.",
		},
		"no right to list, but a narrower one": {
			server: server{lists: []any{forbidden, []string{"a"}}, watches: []any{events()}},
			with: func(r *Resource) {
				other := *r
				r.Else = &other
			},
			claims: []string{"team-a/a"}, notes: "You may not list ResourceClaims of all namespaces: holders are not shown.", watched: []string{"5"},
		},
		"no right to watch": {
			server: server{lists: []any{[]string{"a"}, []string{"b"}}, watches: []any{forbidden}}, after: pollInterval + time.Second,
			claims: []string{"team-a/b"}, notes: "You may not watch ResourceClaims of all namespaces: they are read every 30s.", watched: []string{"5", "5"},
		},
		"not served":              {server: server{lists: []any{missing}}, notes: "The API server has no ResourceClaims: holders are not shown."},
		"optional and not served": {server: server{lists: []any{missing}}, with: func(r *Resource) { r.Optional = true }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				cluster := NewCluster("test", "gpu.nvidia.com", Claims)
				r := c.server.resource()
				if c.with != nil {
					c.with(&r)
				}
				go cluster.Follow(ctx, r)
				time.Sleep(c.after) // The clock of the test stands still until all goroutines wait.
				synctest.Wait()
				if err := cluster.refresh(); err != nil {
					t.Fatal(err)
				}
				var page reader
				page.read(t, cluster.feed)
				if got := slices.Sorted(maps.Keys(page.claims)); !slices.Equal(got, c.claims) {
					t.Errorf("claims %v, want %v", got, c.claims)
				}
				if got := strings.Join(page.status.Notes, " "); got != c.notes {
					t.Errorf("notes %q, want %q", got, c.notes)
				}
				if !slices.Equal(c.server.watched, c.watched) {
					t.Errorf("watches since %v, want %v", c.server.watched, c.watched)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

func TestServe_ContextEnds_PortIsClosed(t *testing.T) {
	l, err := Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := newTestCluster()
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, NewHandler("T", c, nil, nil)) }()
	url := URL(l, "T")
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("the page is at %s", url)
	}
	response, err := http.Get(url + "api/watch") // It stays open.
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the server does not end while a page is open")
	}
	if again, err := http.Get(url); err == nil {
		again.Body.Close()
		t.Error("the port is still open")
	}
}

func TestHandler_Why_AnswerOrStatus(t *testing.T) {
	c := newTestCluster()
	for name, code := range map[string]int{"found": 200, "gone": 404, "forbidden": 403, "slow": 504, "broken": 502} {
		h := NewHandler("T", c, func(_ context.Context, namespace, claim string) (any, error) {
			if namespace != "team-a" || claim != "a&b" {
				t.Errorf("asked about %s/%s", namespace, claim)
			}
			return map[string]string{"summary": "x"}, map[string]error{
				"gone": apierrors.NewNotFound(schema.GroupResource{}, "a"), "forbidden": apierrors.NewForbidden(schema.GroupResource{}, "a", nil),
				"slow": fmt.Errorf("list: %w", context.DeadlineExceeded), "broken": errors.New("broken"),
			}[name]
		}, nil)
		if w := get(h, "/T/api/why?namespace=team-a&name=a%26b"); w.Code != code {
			t.Errorf("%s: code %d, want %d", name, w.Code, code)
		}
	}
}
