// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpu-dra-driver/pkg/cluster/pool"
)

// TestSlices_Pages_InOrderUntilAnError has pages of several slices, of which the last one fails in one case.
func TestSlices_Pages_InOrderUntilAnError(t *testing.T) {
	all := boards(t, 3)
	size := len(all) / 3
	for name, fails := range map[string]bool{"all pages": false, "last page fails": true} {
		t.Run(name, func(t *testing.T) {
			page := map[string]*resourceapi.ResourceSliceList{
				"":  {ListMeta: metav1.ListMeta{Continue: "2"}, Items: all[:size]},
				"2": {ListMeta: metav1.ListMeta{Continue: "3"}, Items: all[size : 2*size]},
				"3": {Items: all[2*size:]},
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				token := r.URL.Query().Get("continue")
				if fails && token == "3" {
					w.WriteHeader(http.StatusForbidden)
					return
				}
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
				_, _ = w.Write(encoded(t, page[token], runtime.ContentTypeProtobuf)) // The client reports what it lacks.
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
			if err != nil {
				t.Fatal(err)
			}
			var shapes pool.Shapes
			var got, want []string
			var failed error
			for p, err := range Slices(t.Context(), client, metav1.ListOptions{}, shapes.Pack) {
				if failed = errors.Join(failed, err); err == nil {
					got = append(got, p.Name)
				}
			}
			for i, s := range all {
				if !fails || i < 2*size {
					want = append(want, s.Name)
				}
			}
			if !slices.Equal(got, want) || (failed != nil) != fails {
				t.Errorf("%d of %d slices, %v", len(got), len(want), failed)
			}
		})
	}
}
