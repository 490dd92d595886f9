// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/read"
)

const (
	// checkInterval is the interval of checks of the certificate's expiry, retryInterval the pause after an error.
	checkInterval, retryInterval = time.Hour, 5 * time.Second
	// trustDelay gives API servers time to trust the authority of a new certificate before it is served.
	trustDelay = 5 * time.Second

	certificateLifetime = 365 * 24 * time.Hour
	// renewBefore is the remaining lifetime at which a certificate is renewed.
	renewBefore = 90 * 24 * time.Hour
	// maxAuthorities limits the bundle, in case the Secret is replaced again and again.
	maxAuthorities = 4
)

// Certificate serves the webhook's certificate from its Secret. It is safe for concurrent use.
type Certificate struct {
	client              kubernetes.Interface
	namespace, secret   string
	service, configName string

	secrets, configs cache.SharedIndexInformer
	changed          chan struct{}
	served           atomic.Pointer[tls.Certificate]
	// pending is the Secret's certificate in DER, until it is served.
	pending      []byte
	pendingSince time.Time
	// namespaceUID is empty until it is needed.
	namespaceUID types.UID
}

// NewCertificate returns the certificate in the Secret, which Run keeps up to date. With a service, it also creates the
// Secret for that Service, renews it and writes its authority into the ValidatingWebhookConfiguration. Without one,
// another program does so.
func NewCertificate(client kubernetes.Interface, namespace, secret, service, configuration string) *Certificate {
	c := &Certificate{
		client: client, namespace: namespace, secret: secret, service: service, configName: configuration,
		changed: make(chan struct{}, 1),
	}
	// The RBAC rules are for these two objects only.
	only := func(name string) string { return fields.OneTermEqualSelector(metav1.ObjectNameField, name).String() }
	c.secrets = read.Informer(client, client.CoreV1().Secrets(namespace), only(secret), &corev1.Secret{}, nil)
	configs, config := client.AdmissionregistrationV1().ValidatingWebhookConfigurations(),
		&admissionv1.ValidatingWebhookConfiguration{}
	c.configs = read.Informer(client, configs, only(configuration), config, nil)
	return c
}

// Get implements tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := c.served.Load(); pair != nil {
		return pair, nil
	}
	return nil, fmt.Errorf("the Secret %s/%s contains no certificate yet", c.namespace, c.secret)
}

// Run keeps the certificate up to date until the context ends.
func (c *Certificate) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	watched := []cache.SharedIndexInformer{c.secrets}
	if c.service != "" {
		watched = append(watched, c.configs)
	}
	for _, informer := range watched {
		if err := On(informer, func(any, bool) { Trigger(c.changed) }); err != nil {
			return err
		}
	}
	if !read.Start(ctx, &wg, watched...) {
		return nil
	}
	Repeat(ctx, c.changed, 0, func() time.Duration {
		again, err := c.reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "The webhook keeps its certificate")
			return retryInterval
		}
		return again
	})
	return nil
}

// reconcile renews, announces and serves the certificate, in this order. Each step waits until the cache shows the
// result of the previous one. It returns when to run again without a change.
func (c *Certificate) reconcile(ctx context.Context) (again time.Duration, err error) {
	object, _, _ := c.secrets.GetStore().GetByKey(c.namespace + "/" + c.secret) // The cache has no errors.
	secret, _ := object.(*corev1.Secret)
	if secret == nil && c.service == "" {
		return checkInterval, nil
	}
	var data map[string][]byte
	if secret != nil {
		data = secret.Data
	}
	pair, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	switch {
	case c.service != "":
		if host := c.service + "." + c.namespace + ".svc"; err != nil || !lasts(pair, host) {
			return checkInterval, c.renew(ctx, secret, host)
		}
		if err := c.announce(ctx, authorityOf(pair)); err != nil {
			return checkInterval, err
		}
		if err := c.own(ctx); err != nil { // The webhook works without an owner.
			klog.FromContext(ctx).Error(err, "The webhook's configuration stays when the namespace is deleted",
				"configuration", c.configName)
		}
	case len(data[corev1.TLSCertKey]) == 0, len(data[corev1.TLSPrivateKeyKey]) == 0:
		klog.FromContext(ctx).V(2).Info("The Secret of the webhook's certificate is still empty", "secret",
			klog.KObj(secret))
		return checkInterval, nil
	case err != nil:
		klog.FromContext(ctx).Error(err, "The webhook keeps its certificate", "secret", klog.KObj(secret))
		return checkInterval, nil
	}
	return c.serve(&pair), nil
}

// authorityOf returns the last certificate of the chain in DER, which clients trust.
func authorityOf(pair tls.Certificate) []byte { return pair.Certificate[len(pair.Certificate)-1] }

// lasts reports whether a client that trusts the pair's authority will still accept the pair after renewBefore.
func lasts(pair tls.Certificate, host string) bool {
	authority, err := x509.ParseCertificate(authorityOf(pair))
	if err != nil {
		return false
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: time.Now().Add(renewBefore)})
	return err == nil
}

// newData returns the data of a Secret with a new certificate. It is valid from an hour ago, because clocks can be
// slow. Its authority signs nothing else, because its key is not stored.
func newData(host string) (map[string][]byte, error) {
	pair, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: host,
		MaxAge: certificateLifetime})
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	return map[string][]byte{corev1.TLSCertKey: pair, corev1.TLSPrivateKeyKey: key}, nil
}

// renew writes a new certificate into the Secret, and creates a missing Secret. If instances write concurrently, one
// gets a conflict and then sees the other's Secret in its watch.
func (c *Certificate) renew(ctx context.Context, secret *corev1.Secret, host string) error {
	data, err := newData(host)
	if err != nil {
		return err
	}
	secrets := c.client.CoreV1().Secrets(c.namespace)
	if secret != nil {
		secret = secret.DeepCopy()
		secret.Data = data
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("renew the webhook's certificate in the Secret %s/%s: %w", c.namespace, c.secret, err)
		}
		return nil
	}
	// If the Service is gone, the driver is being uninstalled, and a new Secret would be left behind.
	service, err := c.client.CoreV1().Services(c.namespace).Get(ctx, c.service, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the Service of the webhook, to create its Secret: %w", err)
	}
	_, err = secrets.Create(ctx, &corev1.Secret{Data: data, ObjectMeta: metav1.ObjectMeta{
		Name: c.secret,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1",
			Kind:       "Service",
			Name:       service.Name,
			UID:        service.UID,
		}},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the Secret %s/%s of the webhook's certificate: %w", c.namespace, c.secret, err)
	}
	return nil
}

// announce writes the authority into the webhook configuration, where API servers read it.
func (c *Certificate) announce(ctx context.Context, authority []byte) error {
	object, _, _ := c.configs.GetStore().GetByKey(c.configName) // The cache has no errors.
	config, ok := object.(*admissionv1.ValidatingWebhookConfiguration)
	if !ok {
		return nil // No API server calls the webhook.
	}
	config, changed := config.DeepCopy(), false
	for i := range config.Webhooks {
		client := &config.Webhooks[i].ClientConfig
		want := bundle(authority, client.CABundle)
		changed = changed || !bytes.Equal(want, client.CABundle)
		client.CABundle = want
	}
	if !changed {
		return nil
	}
	_, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, config,
		metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("write the certificate's authority into ValidatingWebhookConfiguration %s: %w", c.configName,
			err)
	}
	return nil
}

// own makes the namespace the owner of the webhook configuration: without the namespace nothing answers, and a
// configuration that stays would deny for ever.
func (c *Certificate) own(ctx context.Context) error {
	object, _, _ := c.configs.GetStore().GetByKey(c.configName) // The cache has no errors.
	config, ok := object.(*admissionv1.ValidatingWebhookConfiguration)
	if !ok {
		return nil
	}
	if c.namespaceUID == "" {
		namespace, err := c.client.CoreV1().Namespaces().Get(ctx, c.namespace, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get the Namespace %s: %w", c.namespace, err)
		}
		c.namespaceUID = namespace.UID
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: c.namespace, UID: c.namespaceUID}
	if slices.Contains(config.OwnerReferences, owner) {
		return nil
	}
	config = config.DeepCopy()
	// An earlier Namespace of this name does not exist any more.
	config.OwnerReferences = append(slices.DeleteFunc(config.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == owner.Kind && o.Name == owner.Name
	}), owner)
	_, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, config,
		metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("write the owner of ValidatingWebhookConfiguration %s: %w", c.configName, err)
	}
	return nil
}

// serve replaces the served certificate after API servers had time to trust its authority. It returns when to run
// again.
func (c *Certificate) serve(pair *tls.Certificate) time.Duration {
	if last := c.served.Load(); last != nil && !bytes.Equal(pair.Leaf.Raw, last.Leaf.Raw) {
		if !bytes.Equal(c.pending, pair.Leaf.Raw) {
			c.pending, c.pendingSince = pair.Leaf.Raw, time.Now()
		}
		if rest := trustDelay - time.Since(c.pendingSince); rest > 0 {
			return rest
		}
	}
	c.served.Store(pair)
	return checkInterval
}

// bundle returns the authority in PEM, and the still valid ones of the old bundle, because another instance may serve
// one of their certificates for a moment.
func bundle(authority, old []byte) []byte {
	out := pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: authority})
	for n := 1; n < maxAuthorities; {
		var block *pem.Block
		if block, old = pem.Decode(old); block == nil {
			break
		}
		known, err := x509.ParseCertificate(block.Bytes)
		if err != nil || time.Now().After(known.NotAfter) || bytes.Equal(block.Bytes, authority) {
			continue
		}
		out = append(out, pem.EncodeToMemory(block)...)
		n++
	}
	return out
}
