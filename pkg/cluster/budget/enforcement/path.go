// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package enforcement

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/read"
)

const (
	// pathBytes are the random bytes of a path.
	pathBytes = 24
	// announceFor gives the other instances time to know a new path before API servers use it.
	announceFor = 2 * time.Second
	// acceptFor is the time for which a path is accepted after the configuration lost it. API servers read changes
	// within moments.
	acceptFor = 10 * time.Second
	// renewPause is the least time between two renewals, and renewInterval the time between those of the leader while
	// there are budgets. API servers before 1.36 keep 7 kB for each path until they restart.
	renewPause, renewInterval = time.Minute, 5 * time.Minute
	// lateReview is the time after which a client can have given up.
	lateReview = 2 * time.Second
	// pathWrite limits a write.
	pathWrite = 10 * time.Second
	// checkInterval is the interval of checks of the configuration, pathRetry the pause after an error.
	checkInterval, pathRetry = time.Hour, 5 * time.Second
)

// ReviewPath is the secret path of reviews under GPU budgets. Such reviews write, so only API servers may send them,
// and most clusters cannot give these a client certificate. API servers read the path in the
// ValidatingWebhookConfiguration, which tenants cannot read. But the error about a call without an answer has the path,
// and the author of the claim reads that error. So the path is renewed after each failure that an instance sees, at its
// start, and by the leader regularly.
//
// All instances accept the paths in the configuration. An annotation has the newest one before API servers use it. It
// is safe for concurrent use.
type ReviewPath struct {
	client             kubernetes.Interface
	driver, configName string
	configs            cache.SharedIndexInformer
	changed            chan struct{}

	mu sync.Mutex
	// accepted has the end of each path, which is zero while the configuration has it.
	accepted map[string]time.Time
	// newest is the path in the annotation, seen is when this instance first saw it, and renewed when it last saw it
	// change.
	newest        string
	seen, renewed time.Time
	// wanted asks for a renewal. synced is set once the configuration was read.
	wanted, synced bool
}

// NewReviewPath returns the path in a driver's ValidatingWebhookConfiguration, which Run keeps up to date.
func NewReviewPath(client kubernetes.Interface, driver, configuration string) *ReviewPath {
	// The RBAC rule is for this object only.
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, configuration).String()
	configs := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	return &ReviewPath{
		client:     client,
		driver:     driver,
		configName: configuration,
		changed:    make(chan struct{}, 1),
		accepted:   map[string]time.Time{},
		configs:    read.Informer(client, configs, only, &admissionv1.ValidatingWebhookConfiguration{}, nil),
		wanted:     true, // While no instance ran, API servers have shown the path in errors.
	}
}

// NotTheAPIServer is the answer to a request on another path.
const NotTheAPIServer = "the review could not be authenticated as the API server's: its path is not the newest one " +
	"in the webhook's configuration; try again in a few seconds"

// Only refuses requests on other paths before it reads them. It does so with an answer, so that the API server's error
// shows the reason.
func (p *ReviewPath) Only(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.accepts(r.URL.Path) {
			http.Error(w, NotTheAPIServer, http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Watch renews the path after a review on it whose client may have had no answer. It wraps the handler of the whole
// server, because requests also wait there.
func (p *ReviewPath) Watch(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, answered := time.Now(), false
		if p.accepts(r.URL.Path) {
			defer func() {
				if !answered || r.Context().Err() != nil || time.Since(began) >= lateReview {
					klog.FromContext(r.Context()).V(2).Info("A review under a GPU budget may have had no answer; its "+
						"path is renewed", "after", time.Since(began))
					p.Renew()
				}
			}()
		}
		h.ServeHTTP(w, r)
		answered = true
	})
}

// Renew asks for another path.
func (p *ReviewPath) Renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = true
	controller.Trigger(p.changed)
}

// Synced returns an error until the configuration was read.
func (p *ReviewPath) Synced() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.synced {
		return errors.New("the webhook's configuration is being read")
	}
	return nil
}

// accepts takes the same time for each path.
func (p *ReviewPath) accepts(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, now := 0, time.Now()
	for accepted, end := range p.accepted {
		if end.IsZero() || now.Before(end) {
			found |= subtle.ConstantTimeCompare([]byte(accepted), []byte(path))
		}
	}
	return found == 1
}

// Run keeps the path up to date until the context ends.
func (p *ReviewPath) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	// A write that hangs must not keep this instance from knowing the path that another one wrote.
	if err := controller.On(p.configs, func(config *admissionv1.ValidatingWebhookConfiguration, gone bool) {
		if gone {
			config = nil
		}
		p.observe(config)
		controller.Trigger(p.changed)
	}); err != nil {
		return err
	}
	if !read.Start(ctx, &wg, p.configs) {
		return nil
	}
	controller.Repeat(ctx, p.changed, 0, func() time.Duration {
		again, err := p.reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The path of reviews under GPU budgets stays")
			return pathRetry
		}
		return again
	})
	return nil
}

// annotation has the newest path.
func (p *ReviewPath) annotation() string { return p.driver + "/newest-path" }

// services returns the addresses of the webhooks of budgets in a configuration.
func (p *ReviewPath) services(
	config *admissionv1.ValidatingWebhookConfiguration,
) (out []*admissionv1.ServiceReference) {
	for _, w := range config.Webhooks {
		if w.ClientConfig.Service != nil && (w.Name == "budget."+p.driver || w.Name == "budget-pods."+p.driver) {
			out = append(out, w.ClientConfig.Service)
		}
	}
	return out
}

func pathOf(s *admissionv1.ServiceReference) string {
	if s.Path == nil {
		return ""
	}
	return *s.Path
}

// secretPath reports whether a path is one of newPath. Others are the chart's, or those of an administrator, which can
// be guessed.
func secretPath(path string) bool {
	text, found := strings.CutPrefix(path, Path+"/")
	data, err := hex.DecodeString(text)
	return found && err == nil && len(data) == pathBytes
}

// newPath returns a random path of characters that the API allows in one.
func newPath() string {
	secret := make([]byte, pathBytes)
	_, _ = rand.Read(secret) // It never fails.
	return Path + "/" + hex.EncodeToString(secret)
}

// observe accepts the paths of a configuration, which is nil if there is none.
func (p *ReviewPath) observe(config *admissionv1.ValidatingWebhookConfiguration) {
	now, has, newest := time.Now(), map[string]bool{}, ""
	if config != nil {
		newest = config.Annotations[p.annotation()]
		has[newest] = true
		for _, s := range p.services(config) {
			has[pathOf(s)] = true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for path := range has {
		if secretPath(path) {
			p.accepted[path] = time.Time{}
		}
	}
	for path, end := range p.accepted {
		switch {
		case has[path]:
		case end.IsZero():
			p.accepted[path] = now.Add(acceptFor)
		case !now.Before(end):
			delete(p.accepted, path)
		}
	}
	switch first := p.seen.IsZero(); {
	case newest != p.newest && !first: // This instance has renewed it, or another one.
		p.renewed, p.wanted = now, false
		fallthrough
	case first:
		p.newest, p.seen = newest, now
	}
}

// reconcile announces a new path, or has API servers use the announced one. It returns when to run again without a
// change.
func (p *ReviewPath) reconcile(ctx context.Context) (again time.Duration, err error) {
	object, _, _ := p.configs.GetStore().GetByKey(p.configName) // The cache has no errors.
	config, _ := object.(*admissionv1.ValidatingWebhookConfiguration)
	p.observe(config)
	p.mu.Lock()
	p.synced = true
	wanted, seen, renewed := p.wanted, p.seen, p.renewed
	p.mu.Unlock()
	if config == nil || len(p.services(config)) == 0 {
		return checkInterval, nil // No API server asks for a review.
	}
	newest, apart, known := config.Annotations[p.annotation()], false, true
	for _, s := range p.services(config) {
		apart, known = apart || pathOf(s) != newest, known && secretPath(pathOf(s))
	}
	switch {
	case !secretPath(newest):
		return checkInterval, p.write(ctx, config, newPath(), true)
	case apart:
		// A path of the chart is not accepted, so no time is lost there.
		if rest := announceFor - time.Since(seen); known && rest > 0 {
			return rest, nil
		}
		return checkInterval, p.write(ctx, config, newest, true)
	case wanted:
		if rest := renewPause - time.Since(renewed); rest > 0 {
			return rest, nil
		}
		return checkInterval, p.write(ctx, config, newPath(), false)
	}
	return checkInterval, nil
}

// write stores the newest path on top of the version that was read. If use is set, API servers use it from now on.
// After a conflict, the watch has the newer version.
func (p *ReviewPath) write(
	ctx context.Context, config *admissionv1.ValidatingWebhookConfiguration, path string, use bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, pathWrite)
	defer cancel()
	config = config.DeepCopy()
	metav1.SetMetaDataAnnotation(&config.ObjectMeta, p.annotation(), path)
	if use {
		for _, s := range p.services(config) {
			s.Path = &path
		}
	}
	_, err := p.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, config,
		metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the path of reviews into ValidatingWebhookConfiguration %s: %w", p.configName, err)
	}
	return nil
}
