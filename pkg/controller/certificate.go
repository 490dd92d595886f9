// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// again is how often the files are compared with the Secret that is known: what could not be written is written then.
const again = time.Minute

// Certificate copies the webhook's certificate from its Secret to files, where the server reads it: a volume of the Secret
// would show a new certificate a minute late.
type Certificate struct {
	Client            kubernetes.Interface
	Namespace, Secret string
	// Dir gets tls.crt and tls.key.
	Dir string
	// Service is whose Secret it is: it is made, empty, where there is none, and goes with the Service. Empty: somebody else
	// makes it.
	Service string

	once  sync.Once
	ready chan struct{}
}

// Ready is closed once there is a certificate.
func (c *Certificate) Ready() <-chan struct{} {
	c.once.Do(func() { c.ready = make(chan struct{}) })
	return c.ready
}

// Run copies until the context ends.
func (c *Certificate) Run(ctx context.Context) error {
	c.Ready()
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the webhook's certificate: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client, again, informers.WithNamespace(c.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.Secret).String()
		}))
	secrets := factory.Core().V1().Secrets().Informer()
	if _, err := secrets.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) {
		if err := c.Ensure(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "The webhook goes on with the certificate it has")
		}
	}}); err != nil {
		return err
	}
	if err := on(secrets, func(o any) {
		if s, ok := o.(*corev1.Secret); ok && s.Name == c.Secret {
			c.copy(ctx, s)
		}
	}); err != nil {
		return err
	}
	secrets.RunWithContext(ctx)
	return nil
}

// Ensure makes the Secret where it is to be made and there is none.
func (c *Certificate) Ensure(ctx context.Context) error {
	if c.Service == "" {
		return nil
	}
	secrets := c.Client.CoreV1().Secrets(c.Namespace)
	if _, err := secrets.Get(ctx, c.Secret, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	// Without the Service the driver is on its way out, and nothing is to be left of it.
	service, err := c.Client.CoreV1().Services(c.Namespace).Get(ctx, c.Service, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look for the Service of the webhook, to make its Secret: %w", err)
	}
	_, err = secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name:            c.Secret,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID}},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the Secret %s/%s of the webhook's certificate: %w", c.Namespace, c.Secret, err)
	}
	return nil
}

// copy writes the files, the key first: the server loads both when it can, and keeps the pair it has while they do not
// belong together.
func (c *Certificate) copy(ctx context.Context, s *corev1.Secret) {
	if len(s.Data[corev1.TLSCertKey]) == 0 || len(s.Data[corev1.TLSPrivateKeyKey]) == 0 {
		klog.FromContext(ctx).V(2).Info("The Secret of the webhook's certificate is empty as yet", "secret", klog.KObj(s))
		return
	}
	for _, name := range []string{corev1.TLSPrivateKeyKey, corev1.TLSCertKey} {
		path := filepath.Join(c.Dir, name)
		if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, s.Data[name]) {
			continue
		}
		if err := replace(path, s.Data[name]); err != nil {
			klog.FromContext(ctx).Error(err, "The webhook goes on with the certificate it has", "secret", klog.KObj(s))
			return
		}
	}
	select {
	case <-c.ready:
	default:
		close(c.ready)
	}
}

// replace writes a file that nobody sees half written.
func replace(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("write the webhook's certificate: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the webhook's certificate: %w", err)
	}
	return nil
}
