// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const webhookHost = "webhook.ns.svc"

// pairs returns n certificates with their keys. Call it inside synctest.Test, because certificates contain the time.
func pairs(t *testing.T, n int) (out []map[string][]byte) {
	t.Helper()
	for range n {
		data, err := newData(webhookHost)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, data)
	}
	return out
}

func secret(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: data}
}

// webhookEnv returns an API server with the chart's Service and webhook configuration.
func webhookEnv(t *testing.T) *env {
	return newEnv(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "webhook"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", UID: "ns-uid"}},
		&admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "config"}, Webhooks: []admissionv1.ValidatingWebhook{{Name: "a"}, {Name: "b"}},
		})
}

// startCertificate runs an instance until stop is called. With a service, the instance creates and renews the
// certificate. Without one, it serves the certificate of another program.
func (e *env) startCertificate(service string) (c *Certificate, stop func()) {
	c = NewCertificate(e.Client(), "ns", "cert", service, "config")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			e.T.Error(err)
		}
	})
	pass(time.Second)
	return c, func() {
		cancel()
		wg.Wait()
	}
}

// served returns the certificate that an instance serves, or nil before it has one.
func served(c *Certificate) *x509.Certificate {
	pair, err := c.Get(nil)
	if err != nil {
		return nil
	}
	return pair.Leaf
}

// checkTrusted verifies the served certificate as an API server does, with the CA bundle of each webhook.
func (e *env) checkTrusted(when string, c *Certificate) {
	e.T.Helper()
	cert := served(c)
	if cert == nil {
		e.T.Errorf("%s: no certificate is served", when)
		return
	}
	for _, w := range get[admissionv1.ValidatingWebhookConfiguration](e, "validatingwebhookconfigurations", "config").Webhooks {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(w.ClientConfig.CABundle)
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: webhookHost, CurrentTime: time.Now()}); err != nil {
			e.T.Errorf("%s: webhook %s: %v", when, w.Name, err)
		}
	}
}

func (e *env) authorities() int {
	return bytes.Count(get[admissionv1.ValidatingWebhookConfiguration](e, "validatingwebhookconfigurations", "config").Webhooks[1].ClientConfig.CABundle, []byte("BEGIN"))
}

func TestCertificate_SecretChanges_LastWholePairIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pairs(t, 4)
		e := newEnv(t, secret("cert", nil), secret("other", p[3]))
		c, stop := e.startCertificate("")
		defer stop()
		want := func(when string, pair map[string][]byte) {
			t.Helper()
			synctest.Wait()
			got := served(c)
			switch {
			case pair == nil:
				if got != nil {
					t.Errorf("%s: a certificate is served", when)
				}
			case got == nil || !bytes.Contains(pair[corev1.TLSCertKey], pemOf(got)):
				t.Errorf("%s: another certificate is served", when)
			}
		}
		half := maps.Clone(p[0])
		delete(half, corev1.TLSPrivateKeyKey)
		mixed := map[string][]byte{corev1.TLSCertKey: p[2][corev1.TLSCertKey], corev1.TLSPrivateKeyKey: p[1][corev1.TLSPrivateKeyKey]}
		want("empty", nil)
		e.Put(secret("cert", half))
		want("half of it", nil)
		e.Put(secret("cert", mixed))
		want("a key of another certificate", nil)
		e.Put(secret("cert", p[0]))
		want("whole", p[0])
		e.Put(secret("cert", p[1]))
		want("rotated a moment ago", p[0])
		pass(trustDelay)
		want("rotated", p[1])
		e.Put(secret("cert", half))
		pass(time.Minute)
		want("half of the next", p[1])
		e.Put(secret("cert", mixed))
		pass(time.Minute)
		want("a key of another certificate", p[1])
		e.Remove("secrets", "ns/cert")
		pass(time.Minute)
		want("deleted", p[1])
		e.Put(secret("cert", p[2]))
		pass(time.Minute)
		want("made again", p[2])
		if writes := e.Written(); len(writes) > 0 {
			t.Errorf("another program manages the Secret, but there are writes: %v", writes)
		}
	})
}

// TestCertificate_SecretMissing_MadeForService starts without the Secret, and deletes it later.
func TestCertificate_SecretMissing_MadeForService(t *testing.T) {
	for name, service := range map[string]string{"with a Service": "webhook", "without a Service": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := webhookEnv(t)
				_, stop := e.startCertificate(service)
				defer stop()
				want := func(when string, want bool) {
					t.Helper()
					synctest.Wait()
					s := get[corev1.Secret](e, "secrets", "ns/cert")
					if got := s != nil; got != want {
						t.Fatalf("%s: there is a Secret: %t", when, got)
					}
					if want && (len(s.Data) != 2 || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].Name != "webhook") {
						t.Errorf("%s: %+v", when, s)
					}
				}
				want("at the start", service != "")
				e.Remove("secrets", "ns/cert")
				want("deleted", service != "")
				e.Remove("services", "ns/webhook")
				e.Remove("secrets", "ns/cert")
				want("deleted with the Service", false)
				pass(time.Minute)
				want("a minute after the Service was deleted", false)
			})
		})
	}
}

// TestCertificate_Configuration_OwnedByItsNamespace has a configuration that an earlier Namespace of the name owned, another
// owner, and a Namespace that cannot be read.
func TestCertificate_Configuration_OwnedByItsNamespace(t *testing.T) {
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "node-uid"}
	old := metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: "ns", UID: "old-uid"}
	now := metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: "ns", UID: "ns-uid"}
	for name, c := range map[string]struct {
		before, after []metav1.OwnerReference
		unreadable    bool
	}{
		"new":                  {after: []metav1.OwnerReference{now}},
		"of an old Namespace":  {before: []metav1.OwnerReference{old, other}, after: []metav1.OwnerReference{other, now}},
		"Namespace unreadable": {unreadable: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := webhookEnv(t)
				config := get[admissionv1.ValidatingWebhookConfiguration](e, "validatingwebhookconfigurations", "config")
				config.OwnerReferences = c.before
				e.Put(config)
				if c.unreadable {
					e.Remove("namespaces", "ns")
				}
				cert, stop := e.startCertificate("webhook")
				defer stop()
				pass(time.Minute)
				e.checkTrusted("after a minute", cert)
				got := get[admissionv1.ValidatingWebhookConfiguration](e, "validatingwebhookconfigurations", "config").OwnerReferences
				if !slices.Equal(got, c.after) {
					t.Errorf("owners %v, want %v", got, c.after)
				}
			})
		})
	}
}

// TestCertificate_TimePasses_AlwaysTrusted starts an instance each month for twenty years.
func TestCertificate_TimePasses_AlwaysTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := webhookEnv(t)
		certificates := map[string]bool{}
		for month := range 20 * 12 {
			c, stop := e.startCertificate("webhook")
			for range 8 {
				pass(time.Second)
				e.checkTrusted(fmt.Sprintf("month %d", month), c)
			}
			stop()
			certificates[string(served(c).Raw)] = true
			time.Sleep(30 * 24 * time.Hour)
		}
		if len(certificates) < 24 || len(certificates) > 30 {
			t.Errorf("%d certificates in 20 years", len(certificates))
		}
		if n := e.authorities(); n > 2 {
			t.Errorf("%d authorities are trusted", n)
		}
	})
}

// TestCertificate_NearItsEnd_RenewedWhileRunning runs an instance during the day on which the certificate has 90 days left.
func TestCertificate_NearItsEnd_RenewedWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := webhookEnv(t)
		_, stop := e.startCertificate("webhook")
		stop()
		time.Sleep(certificateLifetime - renewBefore - 12*time.Hour)
		c, stop := e.startCertificate("webhook")
		defer stop()
		before := served(c)
		pass(24 * time.Hour)
		e.checkTrusted("a day later", c)
		if served(c).Equal(before) || e.authorities() != 2 {
			t.Errorf("the certificate is not renewed, or %d authorities are trusted", e.authorities())
		}
	})
}

func TestCertificate_Damaged_RepairedAndAlwaysTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := webhookEnv(t)
		c, stop := e.startCertificate("webhook")
		defer stop()
		data := func() map[string][]byte { return get[corev1.Secret](e, "secrets", "ns/cert").Data }
		first := data()
		other, err := newData("another.ns.svc")
		if err != nil {
			t.Fatal(err)
		}
		damage := func(change func(map[string][]byte)) {
			s := get[corev1.Secret](e, "secrets", "ns/cert")
			s = s.DeepCopy()
			change(s.Data)
			e.Put(s)
		}
		for _, tc := range []struct {
			name        string
			damage      func()
			authorities int
		}{
			{"nonsense for a certificate", func() { damage(func(d map[string][]byte) { d[corev1.TLSCertKey] = []byte("nonsense") }) }, 2},
			{"no key", func() { damage(func(d map[string][]byte) { delete(d, corev1.TLSPrivateKeyKey) }) }, 3},
			{"the bundle gone", func() {
				config := get[admissionv1.ValidatingWebhookConfiguration](e, "validatingwebhookconfigurations", "config")
				config.Webhooks[0].ClientConfig.CABundle, config.Webhooks[1].ClientConfig.CABundle = nil, []byte("nonsense")
				e.Put(config)
			}, 1},
			{"the Secret deleted", func() { e.Remove("secrets", "ns/cert") }, 2},
			{"the certificate of another host", func() { damage(func(d map[string][]byte) { maps.Copy(d, other) }) }, 3},
			{"the Secret deleted again", func() { e.Remove("secrets", "ns/cert") }, 4},
			{"the Secret deleted once more", func() { e.Remove("secrets", "ns/cert") }, 4},
		} {
			tc.damage()
			for range 8 {
				pass(time.Second)
				e.checkTrusted(tc.name, c)
			}
			if n := e.authorities(); n != tc.authorities {
				t.Errorf("%s: %d authorities are trusted, want %d", tc.name, n, tc.authorities)
			}
			if !bytes.Contains(data()[corev1.TLSCertKey], pemOf(served(c))) || bytes.Equal(data()[corev1.TLSCertKey], first[corev1.TLSCertKey]) && tc.name != "the bundle gone" {
				t.Errorf("%s: the Secret is not repaired, or not served", tc.name)
			}
		}
		e.Written()
		pass(24 * time.Hour)
		if writes := e.Written(); len(writes) > 0 {
			t.Errorf("a day without a change writes %v", writes)
		}
	})
}

func TestCertificate_SeveralReplicas_AgreeOnOneSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := webhookEnv(t)
		var replicas []*Certificate
		var wg sync.WaitGroup
		var mu sync.Mutex
		for range 3 {
			wg.Go(func() {
				c := NewCertificate(e.Client(), "ns", "cert", "webhook", "config")
				mu.Lock()
				replicas = append(replicas, c)
				mu.Unlock()
			})
		}
		wg.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		defer wg.Wait()
		defer cancel()
		for _, c := range replicas {
			wg.Go(func() { _ = c.Run(ctx) })
		}
		for _, when := range []string{"at the start", "after a deletion", "after damage"} {
			for range 8 {
				pass(time.Second)
				for i, c := range replicas {
					e.checkTrusted(fmt.Sprintf("%s, replica %d", when, i), c)
				}
			}
			for _, c := range replicas[1:] {
				if !served(c).Equal(served(replicas[0])) {
					t.Errorf("%s: replicas serve different certificates", when)
				}
			}
			if when == "at the start" {
				e.Remove("secrets", "ns/cert")
				continue
			}
			s := get[corev1.Secret](e, "secrets", "ns/cert")
			delete(s.Data, corev1.TLSCertKey)
			e.Put(s)
		}
	})
}

func TestCertificate_WriteFails_TriedAgain(t *testing.T) {
	for _, resource := range []string{"secrets", "validatingwebhookconfigurations", "services"} {
		t.Run(resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := webhookEnv(t)
				failures := 3
				e.Fault = func(r request) (refused, lost error) {
					if r.Resource == resource && (r.Writes() || r.Verb == "get") && failures > 0 {
						failures--
						return errors.New("connection reset"), nil
					}
					return nil, nil
				}
				c, stop := e.startCertificate("webhook")
				defer stop()
				if served(c) != nil {
					t.Error("a certificate is served before API servers trust it")
				}
				pass(time.Minute)
				e.checkTrusted("after failures", c)
			})
		})
	}
}

func pemOf(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}
