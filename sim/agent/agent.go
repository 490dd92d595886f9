// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/sim/agent/label"
)

// Agent follows one node.
type Agent struct {
	Machine Machine
	// Default is the machine of a node without labels.
	Default Want
	// Node and DaemonSet are the names of the agent's own.
	Node, DaemonSet string
	Nodes           typedcorev1.NodeInterface
	DaemonSets      typedappsv1.DaemonSetInterface
	// ReadyFile exists while the node is as wanted.
	ReadyFile string
	// Retry is the time after which a failed step is tried again.
	Retry time.Duration
	// Loads can be nil.
	Loads *Loads
	Log   *slog.Logger
}

// endLimit is the time for the last requests to the API server, well within the grace period of a pod.
const endLimit = 10 * time.Second

// Run works until the context ends. If the DaemonSet is then deleted, it removes the machine and the labels.
func (a *Agent) Run(ctx context.Context) error {
	own, err := a.DaemonSets.Get(ctx, a.DaemonSet, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the agent's own DaemonSet %s: %w", a.DaemonSet, err)
	}
	var deleted atomic.Bool
	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	named := func(name string) fields.Selector { return fields.OneTermEqualSelector(metav1.ObjectNameField, name) }
	nodes := informer(ctx, a.Nodes, &corev1.Node{}, named(a.Node), func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return a.Nodes.List(ctx, o)
	}, a.Nodes.Watch, cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake() },
		UpdateFunc: func(was, now any) {
			if before, after := was.(*corev1.Node), now.(*corev1.Node); !maps.Equal(before.Labels, after.Labels) {
				wake()
			}
		},
	})
	informer(ctx, a.DaemonSets, &appsv1.DaemonSet{}, named(a.DaemonSet), func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return a.DaemonSets.List(ctx, o)
	}, a.DaemonSets.Watch, cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, now any) {
			if ds, ok := now.(*appsv1.DaemonSet); ok && ds.UID == own.UID && ds.DeletionTimestamp != nil {
				deleted.Store(true)
			}
		},
		DeleteFunc: func(any) { deleted.Store(true) },
	})
	var loads sync.WaitGroup
	if a.Loads != nil {
		loads.Go(func() { a.Loads.run(ctx, a.Machine.Root, a.Node, a.Log) })
	}
	retry, last := time.NewTimer(a.Retry), ""
	for {
		select {
		case <-ctx.Done():
			loads.Wait() // It writes to the machine that the end may remove.
			return a.end(own.UID, deleted.Load())
		case <-changed:
		case <-retry.C:
		}
		problem := ""
		if err := a.follow(ctx, nodes); err != nil && ctx.Err() == nil {
			problem = err.Error()
			retry.Reset(a.Retry)
		}
		if problem != "" && problem != last {
			a.Log.Error("The node is not as wanted", "problem", problem)
		}
		last = problem
	}
}

type listFunc = func(context.Context, metav1.ListOptions) (runtime.Object, error)

type watchFunc = func(context.Context, metav1.ListOptions) (watch.Interface, error)

// informer follows the objects that the selector selects.
func informer(ctx context.Context, client any, object runtime.Object, which fields.Selector, list listFunc, follow watchFunc, handler cache.ResourceEventHandler) cache.Store {
	only := func(o *metav1.ListOptions) { o.FieldSelector = which.String() }
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				only(&o)
				return list(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				only(&o)
				return follow(ctx, o)
			},
		}, client),
		ObjectType: object, Handler: handler,
	})
	go controller.RunWithContext(ctx)
	return store
}

// follow makes the node as its labels say.
func (a *Agent) follow(ctx context.Context, nodes cache.Store) error {
	item, ok, err := nodes.GetByKey(a.Node)
	if err != nil || !ok {
		return err // The informer reports the node later.
	}
	if err := a.apply(ctx, item.(*corev1.Node)); err != nil {
		return errors.Join(err, a.setReady(""))
	}
	return nil
}

func (a *Agent) apply(ctx context.Context, node *corev1.Node) error {
	want, err := Choose(a.Default, node.Labels)
	if err != nil {
		return err
	}
	none := "no board"
	if Real(node.Labels) && want != (Want{}) {
		if _, asked := node.Labels[label.Board]; asked {
			return fmt.Errorf("node %s has NVIDIA's hardware, by its label %s: remove its label %s, simulated boards are for other nodes",
				node.Name, label.Hardware, label.Board)
		}
		want, none = Want{}, "no board, because the node has NVIDIA's hardware"
	}
	if want == (Want{}) {
		// Without the labels, no new pods come that use the machine.
		if err := a.label(ctx, node, false); err != nil {
			return err
		}
		if err := a.change(want); err != nil {
			return err
		}
		return a.setReady(none)
	}
	if err := a.change(want); err != nil {
		return err
	}
	if err := a.label(ctx, node, true); err != nil {
		return err
	}
	return a.setReady(want.Board)
}

func (a *Agent) change(want Want) error {
	step, err := a.Machine.Apply(want)
	if step != "" && err == nil {
		a.Log.Info("The machine of the node is "+step, "root", a.Machine.Root, "board", want.Board, "gpus", want.GPUs)
	}
	return err
}

// label sets or removes the agent's labels.
func (a *Agent) label(ctx context.Context, node *corev1.Node, present bool) error {
	labels := map[string]any{}
	for _, key := range []string{label.Present, label.Hardware} {
		switch value, has := node.Labels[key]; {
		case present && value != "true":
			labels[key] = "true"
		case !present && has && !Real(node.Labels):
			labels[key] = nil
		}
	}
	if len(labels) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	if _, err := a.Nodes.Patch(ctx, a.Node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "gpu-simulator"}); err != nil {
		return fmt.Errorf("labelling node %s: %w", a.Node, err)
	}
	return nil
}

// setReady writes the file for the pod's probe, or removes it for an empty text.
func (a *Agent) setReady(text string) error {
	if text == "" {
		if err := os.Remove(a.ReadyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(a.ReadyFile), 0o755); err != nil {
		return err
	}
	return os.WriteFile(a.ReadyFile, []byte(text+"\n"), 0o644)
}

// end removes machine and labels if the DaemonSet is deleted: either a watch saw it, or the API server says it. Any other pod ends
// for an update or a drain, and the node keeps its machine.
func (a *Agent) end(own types.UID, deleted bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	ds, err := a.DaemonSets.Get(ctx, a.DaemonSet, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		deleted = true
	case err != nil:
		a.Log.Warn("The agent's DaemonSet cannot be read", "daemonSet", a.DaemonSet, "problem", err.Error())
	default:
		deleted = ds.UID != own || ds.DeletionTimestamp != nil
	}
	if !deleted {
		a.Log.Info("Shutting down; the machine of the node stays", "root", a.Machine.Root)
		return nil
	}
	node, err := a.Nodes.Get(ctx, a.Node, metav1.GetOptions{})
	if err == nil {
		err = a.label(ctx, node, false)
	}
	if apierrors.IsNotFound(err) {
		err = nil // There is no node to label.
	}
	if removal := a.Machine.Remove(); removal != nil || err != nil {
		return errors.Join(removal, err)
	}
	a.Log.Info("Shutting down; the machine of the node is removed", "root", a.Machine.Root)
	return nil
}
