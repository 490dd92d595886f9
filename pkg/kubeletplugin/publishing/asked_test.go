// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpu-dra-driver/pkg/demand"
	"gpu-dra-driver/pkg/sharing"
)

// askedNode is a node that follows a ConfigMap, in a bubble.
type askedNode struct {
	*Asked
	t       *testing.T
	client  *fake.Clientset
	reports []error
	changes int
}

func atAsked(t *testing.T, objects []runtime.Object, do func(*askedNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &askedNode{t: t, client: fake.NewClientset(objects...)}
		n.Asked = NewAsked(t.Context(), n.client, "ns", "published", func(err error) { n.reports = append(n.reports, err) }, func() { n.changes++ })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			n.Run(ctx)
			close(ended)
		}()
		synctest.Wait()
		do(n)
		cancel()
		<-ended
	})
}

func configMap(profiles ...string) *corev1.ConfigMap {
	times := map[string]time.Time{}
	for _, p := range profiles {
		times[p] = time.Now()
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "published"}, Data: demand.Encode(times)}
}

func (n *askedNode) write(c *corev1.ConfigMap) {
	n.t.Helper()
	maps := n.client.CoreV1().ConfigMaps("ns")
	if _, err := maps.Update(n.t.Context(), c, metav1.UpdateOptions{}); err != nil {
		if _, err := maps.Create(n.t.Context(), c, metav1.CreateOptions{}); err != nil {
			n.t.Fatal(err)
		}
	}
	synctest.Wait()
}

func (n *askedNode) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (n *askedNode) want(when string, small, large sharing.Placements, changes int) {
	n.t.Helper()
	if a, b := n.Placements("1g.10gb"), n.Placements("3g.40gb"); a != small || b != large || n.changes != changes {
		n.t.Errorf("%s: placements %v and %v, want %v and %v; %d changes, want %d", when, a, b, small, large, n.changes, changes)
	}
}

const all, ending, one = sharing.AllPlacements, sharing.EndingPlacements, sharing.OnePlacement

func TestAsked_ConfigMapComesAndChanges_ProfilesFollow(t *testing.T) {
	atAsked(t, nil, func(n *askedNode) {
		n.want("without a ConfigMap", all, all, 0)
		n.write(configMap("1g.10gb"))
		n.want("first ConfigMap", all, ending, 1)
		n.pass(endingFor)
		n.want("after the end", all, one, 2)
		n.pass(time.Minute)
		n.write(configMap("1g.10gb"))
		n.want("renewed", all, one, 2)
		n.write(configMap("3g.40gb", "1g.10gb"))
		n.want("another profile", all, all, 3)
		n.pass(endingFor)
		n.write(configMap("3g.40gb"))
		n.want("no longer asked for", ending, all, 5)
		n.pass(endingFor / 2)
		n.write(configMap("3g.40gb", "1g.10gb"))
		n.want("asked for again", all, all, 6)
	})
}

func TestAsked_ConfigMapDeletedOrUnreadable_NothingChanges(t *testing.T) {
	atAsked(t, []runtime.Object{configMap("1g.10gb")}, func(n *askedNode) {
		n.want("at the start", all, one, 0)
		n.pass(time.Minute)
		changes := n.changes
		bad := configMap()
		bad.Data = map[string]string{demand.Key: "all of them"}
		n.write(bad)
		bad.Labels = map[string]string{"again": "yes"}
		n.write(bad)
		if n.want("unreadable", all, one, changes); len(n.reports) != 1 {
			t.Errorf("reports: %v", n.reports)
		}
		if err := n.client.CoreV1().ConfigMaps("ns").Delete(t.Context(), "published", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		n.pass(24 * time.Hour)
		n.want("deleted", all, one, changes)
	})
}

func TestAsked_FirstConfigMapUnreadable_AllPublished(t *testing.T) {
	bad := configMap()
	bad.Data = nil
	atAsked(t, []runtime.Object{bad}, func(n *askedNode) {
		if n.want("unreadable", all, all, 0); len(n.reports) != 1 {
			t.Errorf("reports: %v", n.reports)
		}
	})
}

func TestNewAsked_ServerAway_AllPublishedUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		a := NewAsked(t.Context(), client, "ns", "published", func(error) {}, func() {})
		if got := a.Placements("1g.10gb"); got != all {
			t.Errorf("%v", got)
		}
	})
}
