// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/demand"
	"gpu-dra-driver/pkg/sharing"
)

const (
	// endingFor is the time for which a withdrawn profile stays published with a taint. Claims that the scheduler had
	// allocated before it saw the taint are in the ConfigMap or in the node's records by then.
	endingFor = 30 * time.Second
	// firstRead limits the wait for the ConfigMap at the start.
	firstRead = 2 * time.Second
)

// Asked follows the ConfigMap with the MIG profiles that the cluster asks for. A ConfigMap that is deleted or unreadable
// changes nothing.
type Asked struct {
	client          kubernetes.Interface
	namespace, name string
	report          func(error)
	changed         func()

	mu sync.Mutex
	// profiles is nil until the first ConfigMap was read.
	profiles map[string]time.Time
	// ends holds when profiles that left the ConfigMap are withdrawn; allEnd is for those that were never in it.
	ends   map[string]time.Time
	allEnd time.Time
	// lastError is reported once.
	lastError string
}

// NewAsked reads the ConfigMap, so that a restarted plugin publishes the same devices. changed is called after each later
// change; it must not block.
func NewAsked(ctx context.Context, client kubernetes.Interface, namespace, name string, report func(error), changed func()) *Asked {
	a := &Asked{client: client, namespace: namespace, name: name, report: report, changed: changed, ends: map[string]time.Time{}}
	ctx, cancel := context.WithTimeout(ctx, firstRead)
	defer cancel()
	switch found, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{}); {
	case err == nil:
		a.set(found)
		a.allEnd = time.Time{}
	case !apierrors.IsNotFound(err):
		klog.FromContext(ctx).Error(err, "The profiles that the cluster asks for are unknown; all are published", "configMap", name)
	}
	return a
}

// Placements answers for profiles with the setting Auto.
func (a *Asked) Placements(profile string) sharing.Placements {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, asked := a.profiles[profile]
	switch now := time.Now(); {
	case asked, a.profiles == nil:
		return sharing.AllPlacements
	case now.Before(a.ends[profile]), now.Before(a.allEnd):
		return sharing.EndingPlacements
	}
	return sharing.OnePlacement
}

// Run follows the ConfigMap until the context ends.
func (a *Asked) Run(ctx context.Context) {
	informer := coreinformers.NewFilteredConfigMapInformer(a.client, a.namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, a.name).String()
	})
	set := func(o any) {
		if found, ok := o.(*corev1.ConfigMap); ok && found.Name == a.name && a.set(found) {
			a.changed()
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // It fails only after the end.
		AddFunc: set, UpdateFunc: func(_, now any) { set(now) },
	})
	informer.RunWithContext(ctx)
}

// set reports whether the profiles changed. Those that leave end later.
func (a *Asked) set(found *corev1.ConfigMap) (changed bool) {
	profiles, err := demand.Decode(found.Data)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if a.lastError != err.Error() {
			a.lastError = err.Error()
			a.report(&claimerror.Error{
				Reason: claimerror.InvalidParameters, Attempt: "read the ConfigMap " + a.namespace + "/" + a.name, Cause: err,
				Remedy: "the published profiles stay as they are; delete the ConfigMap, and the controller writes it again",
			})
		}
		return false
	}
	a.lastError = ""
	same := func(time.Time, time.Time) bool { return true }
	if a.profiles != nil && maps.EqualFunc(a.profiles, profiles, same) {
		return false
	}
	end := time.Now().Add(endingFor)
	if a.profiles == nil {
		a.allEnd = end
	}
	for profile := range a.profiles {
		if _, stays := profiles[profile]; !stays {
			a.ends[profile] = end
		}
	}
	a.profiles = profiles
	time.AfterFunc(endingFor, a.changed)
	return true
}
