// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleetserver

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// serve starts a server with a few nodes and returns a client configuration for a format.
func serve(t *testing.T, format string) (*Server, *rest.Config) {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for node := range 3 {
		if err := s.AddNode(node, "dgx-1-v100"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(s.Kubeconfig()))
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType, config.AcceptContentTypes = format, format
	return s, config
}

func formats(t *testing.T, test func(t *testing.T, s *Server, config *rest.Config)) {
	for _, format := range []string{"application/vnd.kubernetes.protobuf", "application/json"} {
		t.Run(format, func(t *testing.T) {
			s, config := serve(t, format)
			test(t, s, config)
		})
	}
}

// want lists a node's published slices as objects.
func want(s *Server, node int) map[string]resourceapi.ResourceSlice {
	out := map[string]resourceapi.ResourceSlice{}
	for _, one := range s.stamps["dgx-1-v100"] {
		slice := one.of(node)
		out[slice.Name] = *slice
	}
	return out
}

func TestList_ManySlices_PagedAndEachOfItsNode(t *testing.T) {
	formats(t, func(t *testing.T, s *Server, config *rest.Config) {
		client := kubernetes.NewForConfigOrDie(config)
		found, pages := map[string]resourceapi.ResourceSlice{}, 0
		options := metav1.ListOptions{Limit: 2}
		for {
			page, err := client.ResourceV1().ResourceSlices().List(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, slice := range page.Items {
				slice.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}
				found[slice.Name] = slice
			}
			if options.Continue = page.Continue; options.Continue == "" {
				break
			}
		}
		if pages < 2 {
			t.Errorf("%d pages", pages)
		}
		for node := range 3 {
			for name, slice := range want(s, node) {
				if diff := cmp.Diff(slice, found[name]); diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
				delete(found, name)
			}
		}
		if len(found) > 0 {
			t.Errorf("%d more slices", len(found))
		}
	})
}

func TestWatch_ObjectsExist_SentFirstThenChanges(t *testing.T) {
	formats(t, func(t *testing.T, s *Server, config *rest.Config) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		yes := true
		w, err := kubernetes.NewForConfigOrDie(config).ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{
			SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		n := 0
		for e := range w.ResultChan() {
			slice, ok := e.Object.(*resourceapi.ResourceSlice)
			if !ok {
				t.Fatalf("a %T", e.Object)
			}
			if e.Type == watch.Bookmark {
				if slice.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
					t.Errorf("annotations of the bookmark: %v", slice.Annotations)
				}
				break
			}
			n++
		}
		if n != 3*len(s.stamps["dgx-1-v100"]) {
			t.Errorf("%d slices before the bookmark", n)
		}
		s.ChangeNode(1, "dgx-1-v100", 0, func(slice *resourceapi.ResourceSlice) { slice.Spec.Pool.Generation = 7 })
		e := <-w.ResultChan()
		if slice, ok := e.Object.(*resourceapi.ResourceSlice); !ok || e.Type != watch.Modified || slice.Spec.Pool.Generation != 7 {
			t.Errorf("the change comes as %v", e)
		}
	})
}

func TestWrite_OldVersion_Conflicts(t *testing.T) {
	formats(t, func(t *testing.T, s *Server, config *rest.Config) {
		classes := kubernetes.NewForConfigOrDie(config).ResourceV1().DeviceClasses()
		made, err := classes.Create(t.Context(), &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := classes.Create(t.Context(), made, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("a second create: %v", err)
		}
		if _, err := classes.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := classes.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("an update of an old version: %v", err)
		}
		if err := classes.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := classes.Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("after the end: %v", err)
		}
		var said []string
		for _, w := range s.Writes(0) {
			said = append(said, w.What)
		}
		if diff := cmp.Diff([]string{"ADDED", "MODIFIED", "DELETED"}, said); diff != "" {
			t.Error(diff)
		}
	})
}

func TestNodes_MetadataWatchAndPatch_Served(t *testing.T) {
	s, config := serve(t, "application/vnd.kubernetes.protobuf")
	nodes := metadata.NewForConfigOrDie(config).Resource(s.of("nodes").kind.GroupVersionKind().GroupVersion().WithResource("nodes"))
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 3 {
		t.Fatalf("%v, %v", list, err)
	}
	patch := []byte(`{"metadata":{"labels":{"a":"b","kubernetes.io/os":null}}}`)
	is, err := nodes.Patch(t.Context(), NodeName(1), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil || is.Labels["a"] != "b" || is.Labels["kubernetes.io/os"] != "" || is.Labels["kubernetes.io/arch"] == "" {
		t.Errorf("%v, %v", is, err)
	}
	stale := []byte(`{"metadata":{"resourceVersion":"1"}}`)
	if _, err := nodes.Patch(t.Context(), NodeName(1), types.MergePatchType, stale, metav1.PatchOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a patch of an old version: %v", err)
	}
}
