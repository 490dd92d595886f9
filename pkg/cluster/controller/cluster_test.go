// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/internal/testing/controllertest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
)

const (
	grace     = 10 * time.Minute
	l40sClass = "nvidia-l40s.gpu.nvidia.com"
	h100Class = "nvidia-h100-80gb-hbm3.gpu.nvidia.com"
	t4Class   = "tesla-t4.gpu.nvidia.com"
	smallest  = "mig-1g.10gb.nvidia.com"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// env is the API server of a test.
type env struct{ *controllertest.Env }

func newEnv(t testing.TB, objects ...runtime.Object) *env {
	return &env{controllertest.New(t, objects...)}
}

func get[T any](e *env, resource, name string) *T {
	return controllertest.Get[T](e.Env, resource, name)
}

type request = controllertest.Request

var (
	slicesAt, machine, pass, autoSlices = controllertest.SlicesAt, controllertest.Machine, controllertest.Pass, controllertest.AutoSlices
	class, claimOf, podOf               = controllertest.Class, controllertest.ClaimOf, controllertest.PodOf
	padded                              = controllertest.Padded
)

// start runs a controller that leads, until stop is called.
func (e *env) start(change ...func(*Options)) (c *Controller, stop func()) {
	e.T.Helper()
	return e.startAs(true, change...)
}

// startAs is start for a controller that leads or not.
func (e *env) startAs(leads bool, change ...func(*Options)) (c *Controller, stop func()) {
	e.T.Helper()
	o := Options{
		LabelNodes: true, Grace: grace,
		Classes: deviceclasses.Options{Driver: slicetest.Driver, Models: true, Profiles: true, Groups: true, ResourcePrefix: "nvidia.com/mig-"},
	}
	for _, f := range change {
		f(&o)
	}
	c = New(o.Classes.Driver, e.Client(), o)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	parts := []func(context.Context) error{c.Observe}
	if leads {
		parts = append(parts, c.Lead)
	}
	for _, part := range parts {
		wg.Go(func() {
			if err := part(ctx); err != nil {
				e.T.Error(err)
			}
		})
	}
	return c, func() {
		cancel()
		wg.Wait()
	}
}

// at has a test done in a bubble: with a cluster on which a controller has come to rest.
func at(t *testing.T, objects []runtime.Object, do func(*testing.T, *env, *Controller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, objects...)
		c, stop := e.start()
		defer stop()
		pass(time.Second)
		do(t, e, c)
	})
}
