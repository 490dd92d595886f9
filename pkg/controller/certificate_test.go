// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func secret(name, cert, key string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{}}
	for k, v := range map[string]string{"tls.crt": cert, "tls.key": key} {
		if v != "" {
			s.Data[k] = []byte(v)
		}
	}
	return s
}

func TestTheCertificateIsCopiedOnceItIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, secret("cert", "", ""), secret("other", "x", "y"))
		dir := filepath.Join(t.TempDir(), "certs")
		c := &Certificate{Client: s.client(), Namespace: "ns", Secret: "cert", Dir: dir}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		want := func(when string, ready bool, files map[string]string) {
			t.Helper()
			synctest.Wait()
			isReady := false
			select {
			case <-c.Ready():
				isReady = true
			default:
			}
			got := map[string]string{}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				data, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if info, _ := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s: mode %v, %v", e.Name(), info.Mode(), err)
				}
				got[e.Name()] = string(data)
			}
			if diff := cmp.Diff(files, got); diff != "" || isReady != ready {
				t.Errorf("%s: ready %t, files (-want +got)\n%s", when, isReady, diff)
			}
		}
		want("empty", false, map[string]string{})
		s.put(secret("cert", "c1", ""))
		want("half of it", false, map[string]string{})
		s.put(secret("cert", "c1", "k1"))
		want("whole", true, map[string]string{"tls.crt": "c1", "tls.key": "k1"})
		s.put(secret("cert", "c2", "k2"))
		want("rotated", true, map[string]string{"tls.crt": "c2", "tls.key": "k2"})
		s.put(secret("cert", "", "k3"))
		want("half of the next", true, map[string]string{"tls.crt": "c2", "tls.key": "k2"})
		s.remove("secrets", "ns/cert")
		want("deleted", true, map[string]string{"tls.crt": "c2", "tls.key": "k2"})
		s.put(secret("cert", "c4", "k4"))
		want("made again", true, map[string]string{"tls.crt": "c4", "tls.key": "k4"})
		if err := os.Remove(filepath.Join(dir, "tls.crt")); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		want("lost from the disk", true, map[string]string{"tls.crt": "c4", "tls.key": "k4"})
	})
}

func TestACertificateThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, secret("cert", "c1", "k1"))
		dir := t.TempDir()
		// A directory of the name is in the way of either file.
		inTheWay := filepath.Join(dir, "tls.key.new")
		if err := os.Mkdir(inTheWay, 0o700); err != nil {
			t.Fatal(err)
		}
		c := &Certificate{Client: s.client(), Namespace: "ns", Secret: "cert", Dir: dir}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { _ = c.Run(ctx) })
		pass(time.Second)
		if _, err := os.Stat(filepath.Join(dir, "tls.crt")); err == nil {
			t.Error("the certificate is written before its key")
		}
		select {
		case <-c.Ready():
			t.Fatal("it is ready without a key")
		default:
		}
		if err := os.Remove(inTheWay); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		select {
		case <-c.Ready():
		default:
			t.Error("it is not tried again")
		}
	})
}

func TestADirectoryThatCannotBeMadeIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (&Certificate{Dir: filepath.Join(file, "certs")}).Run(context.Background()); err == nil {
		t.Error("no error")
	}
}

// TestASecretThatIsDeletedIsMadeAgain has it gone at the start, and later: what fills it fills no Secret that is not there.
func TestASecretThatIsDeletedIsMadeAgain(t *testing.T) {
	for name, keeps := range map[string]bool{"ours to fill": true, "another's to fill": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "webhook"}})
				c := &Certificate{Client: s.client(), Namespace: "ns", Secret: "cert", Dir: filepath.Join(t.TempDir(), "certs")}
				if keeps {
					c.Service = "webhook"
				}
				ctx, cancel := context.WithCancel(context.Background())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer cancel()
				want := func(when string) {
					t.Helper()
					synctest.Wait()
					if got := len(s.names("secrets")) == 1; got != keeps {
						t.Errorf("%s: there is a Secret: %t", when, got)
					}
				}
				if err := c.Ensure(ctx); err != nil {
					t.Error(err)
				}
				want("at the start")
				wg.Go(func() {
					if err := c.Run(ctx); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
				s.put(secret("cert", "c1", "k1"))
				synctest.Wait()
				s.remove("secrets", "ns/cert")
				want("deleted")
				s.remove("services", "ns/webhook")
				s.remove("secrets", "ns/cert")
				synctest.Wait()
				if left := s.names("secrets"); len(left) > 0 {
					t.Errorf("the driver is gone, and there is %v", left)
				}
			})
		})
	}
}
