// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/read"
)

var claimResource = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}

var createClaim = request{Verb: "create", Resource: "resourceclaims"}

// unreached is the error of an API server that does not reach the webhook.
func unreached(cause string) error {
	return apierrors.NewInternalError(fmt.Errorf(`failed calling webhook "parameters.gpu.nvidia.com": failed to call webhook: Post "https://w.ns.svc:443/admit?timeout=5s": %s`, cause))
}

// refusing answers as the API server does where the webhook denies.
func refusing(r request) (refused, lost error) {
	if r.Verb == "create" && r.Resource == "resourceclaims" {
		path := field.NewPath("spec", "devices", "config").Index(0).Child("opaque", "parameters")
		return apierrors.NewInvalid(schema.GroupKind{Group: "resource.k8s.io", Kind: "ResourceClaim"}, "", field.ErrorList{field.Forbidden(path, "wrong")}), nil
	}
	return nil, nil
}

func failingOn(is request, err error) func(request) (error, error) {
	return func(r request) (refused, lost error) {
		if r.Verb == is.Verb && r.Resource == is.Resource {
			return err, nil
		}
		return refusing(r)
	}
}

func TestInstallation_PartMissing_NamesIt(t *testing.T) {
	away := apierrors.NewInternalError(errors.New("etcd is away"))
	for name, c := range map[string]struct {
		class, devices, webhook bool
		fault                   func(request) (error, error)
		out, err                []string
	}{
		"all well": {true, true, true, refusing, []string{
			"DeviceClass gpu.nvidia.com exists\n", "2 nodes publish ", "The webhook refuses a claim with invalid parameters\n"}, nil},
		"no webhook is wanted":      {true, true, false, nil, []string{"2 nodes publish "}, nil},
		"no class":                  {false, true, true, refusing, nil, []string{"DeviceClass gpu.nvidia.com does not exist; the chart creates it, unless deviceClasses.gpu.enabled is false"}},
		"no look at classes":        {true, true, true, failingOn(request{Verb: "get", Resource: "deviceclasses"}, away), nil, []string{"get DeviceClass gpu.nvidia.com: ", "etcd is away"}},
		"no devices":                {true, false, true, refusing, []string{"exists"}, []string{"list the devices of gpu.nvidia.com: no node publishes a device; see the logs of the kubelet plugin's pods"}},
		"no list of devices":        {true, true, true, failingOn(request{Verb: "list", Resource: "resourceslices"}, away), nil, []string{"list the devices", "etcd is away"}},
		"no webhook":                {true, true, true, nil, []string{"publish"}, []string{"check the webhook: the API server accepts a claim with invalid parameters", "TCP port 9443", "webhook.hostNetwork=true"}},
		"the webhook cannot be had": {true, true, true, failingOn(createClaim, away), nil, []string{"check the webhook", "etcd is away", "See the logs of the controller's pods"}},
		"a firewall":                {true, true, true, failingOn(createClaim, unreached("context deadline exceeded")), nil, []string{"deadline exceeded. Allow", "TCP port 9443", "webhook.hostNetwork=true", "docs/firewalls.md"}},
		"no ready controller":       {true, true, true, failingOn(createClaim, unreached(`no endpoints available for service "w"`)), nil, []string{"no pod of the controller is ready"}},
		"an untrusted certificate":  {true, true, true, failingOn(createClaim, unreached("tls: failed to verify certificate: x509: unknown authority")), nil, []string{"do not trust the certificate"}},
		"no client certificate":     {true, true, true, failingOn(createClaim, unreached("an error on the server (\""+NoClientCertificate+"\")")), nil, []string{"webhook.tls.clientCA"}},
		"another webhook fails":     {true, true, true, failingOn(createClaim, apierrors.NewInternalError(errors.New(`failed calling webhook "x.example.com": EOF`))), nil, []string{"EOF. See the logs"}},
		"another webhook refuses": {true, true, true, failingOn(createClaim, apierrors.NewForbidden(claimResource, "", errors.New("quota"))),
			nil, []string{"check the webhook", "quota"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t)
				e.Fault = c.fault
				if c.class {
					e.Put(class("gpu.nvidia.com", "true"))
				}
				if c.devices {
					e.Publish("l40s-4", "a", 0)
					e.Publish("t4-1", "b", 0)
				}
				var out bytes.Buffer
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				err := Checks{Client: e.Client(), Driver: slicetest.Driver, Namespace: "ns", Webhook: c.webhook, Port: 9443, Out: &out}.Installation(ctx)
				says(t, out.String(), c.out, err, c.err)
				if n := len(e.Names("resourceclaims")); n > 0 {
					t.Errorf("the check leaves %d claims", n)
				}
			})
		})
	}
}

// says compares the output with parts of it.
func says(t *testing.T, out string, outs []string, err error, errs []string) {
	t.Helper()
	for _, want := range outs {
		if !strings.Contains(out, want) {
			t.Errorf("output %q, want %q in it", out, want)
		}
	}
	if (err != nil) != (len(errs) > 0) {
		t.Errorf("error %v", err)
	}
	for _, want := range errs {
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want %q in it", err, want)
		}
	}
}

func TestInstallation_PartsComeLate_WaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, class("gpu.nvidia.com", "true"))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		time.AfterFunc(20*time.Second, func() { e.Publish("l40s-4", "a", 0) })
		time.AfterFunc(40*time.Second, func() {
			e.Lock()
			defer e.Unlock()
			e.Fault = refusing
		})
		var out bytes.Buffer
		err := Checks{Client: e.Client(), Driver: slicetest.Driver, Namespace: "ns", Webhook: true, Out: &out}.Installation(ctx)
		says(t, out.String(), []string{"1 nodes publish", "The webhook refuses"}, err, nil)
	})
}

func TestUninstall_ClaimsHoldDevices_NamesThem(t *testing.T) {
	many := func(n int) (out []*resourceapi.ResourceClaim) {
		for i := range n {
			out = append(out, reserved(holding(fmt.Sprintf("c%03d", i), "a", "gpu-0")))
		}
		return out
	}
	for name, c := range map[string]struct {
		claims   []*resourceapi.ResourceClaim
		fault    func(request) (error, error)
		out, err []string
	}{
		"nothing": {nil, nil, []string{"No claim has devices of gpu.nvidia.com\n"}, nil},
		"claims of others, and those that have nothing": {
			[]*resourceapi.ResourceClaim{holding("nic", "a", "?eth0"), unallocated("w", request1("gpu.nvidia.com"))}, nil, []string{"No claim"}, nil},
		"a claim without pods": {[]*resourceapi.ResourceClaim{holding("idle", "a", "?eth0", "gpu-0")}, nil, nil, []string{
			"claims have devices of gpu.nvidia.com, and without the driver their pods cannot end:\n  ns/idle\nDelete these pods first", "helm uninstall --no-hooks"}},
		"a claim for watching": {[]*resourceapi.ResourceClaim{reserved(holding("m", "a", "!monitor-0"))}, nil, nil, []string{"  ns/m (m-pod)\n"}},
		"many":                 {many(20), nil, nil, []string{"  ns/c019 (c019-pod)\nDelete these"}},
		"more, on two pages":   {many(read.PageSize + 1), nil, nil, []string{"  ns/c019 (c019-pod)\n  and 181 more\nDelete these"}},
		"no list": {nil, failingOn(request{Verb: "list", Resource: "resourceclaims"}, apierrors.NewForbidden(claimResource, "", errors.New("no"))),
			nil, []string{"list the claims: "}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.Fault = c.fault
			for _, claim := range c.claims {
				e.Put(claim)
			}
			var out bytes.Buffer
			err := Checks{Client: e.Client(), Driver: slicetest.Driver, Out: &out}.Uninstall(context.Background())
			says(t, out.String(), c.out, err, c.err)
		})
	}
}
