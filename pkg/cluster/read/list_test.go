// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pool"
)

// boards returns the slices of nodes with boards of one make, of which each has its own UUIDs.
func boards(t testing.TB, nodes int) (out []resourceapi.ResourceSlice) {
	t.Helper()
	for n := range nodes {
		all, err := slicetest.Node("hgx-h100", fmt.Sprintf("n%d", n), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			s = s.DeepCopy()
			s.ResourceVersion, s.UID = "7", "id"
			for _, d := range s.Spec.Devices {
				for name, a := range d.Attributes {
					if a.StringValue != nil && strings.HasPrefix(*a.StringValue, "GPU-") {
						d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: new(fmt.Sprintf("%s-%d", *a.StringValue, n))}
					}
				}
			}
			out = append(out, *s)
		}
	}
	return out
}

func encoded(t testing.TB, list *resourceapi.ResourceSliceList, mediaType string) []byte {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatal("no serializer for ", mediaType)
	}
	data, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, resourceapi.SchemeGroupVersion), list)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestReadList_Encodings_ReturnsTheSlices(t *testing.T) {
	list := &resourceapi.ResourceSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "more"}, Items: boards(t, 3)}
	for _, mediaType := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		t.Run(mediaType, func(t *testing.T) {
			var shapes pool.Shapes
			seen := map[*pool.Shape]int{}
			var got []resourceapi.ResourceSlice
			var meta metav1.ListMeta
			err := readList(bytes.NewReader(encoded(t, list, mediaType)), func(m metav1.ListMeta) { meta = m }, func(raw []byte) error {
				p, err := shapes.Pack(raw)
				if err != nil {
					return err
				}
				clear(raw) // The caller uses the memory again.
				seen[p.Shape]++
				got = append(got, *p.ResourceSlice())
				return nil
			})
			if err != nil || meta.Continue != "more" {
				t.Fatalf("%+v, %v", meta, err)
			}
			if diff := cmp.Diff(list.Items, got); diff != "" {
				t.Error(diff)
			}
			if len(seen) != len(list.Items)/3 {
				t.Errorf("%d slices of three equal nodes have %d shapes", len(got), len(seen))
			}
		})
	}
}

// TestReadList_CutAnswer_ReturnsError cuts an answer at its begin, at its end and in between.
func TestReadList_CutAnswer_ReturnsError(t *testing.T) {
	list := &resourceapi.ResourceSliceList{Items: boards(t, 1)}
	data := encoded(t, list, runtime.ContentTypeProtobuf)
	for size := range data {
		if size > 100 && size < len(data)-100 && size%997 != 0 {
			continue
		}
		slices := 0
		err := readList(bytes.NewReader(data[:size]), ignore, func([]byte) error { slices++; return nil })
		if err == nil && slices < len(list.Items) {
			t.Errorf("the first %d of %d bytes are a list of %d slices", size, len(data), slices)
		}
	}
}

func ignore(metav1.ListMeta) {}

func FuzzReadList(f *testing.F) {
	one := &resourceapi.ResourceSliceList{Items: boards(f, 1)[:1]}
	one.Items[0].Spec.Devices = one.Items[0].Spec.Devices[:min(1, len(one.Items[0].Spec.Devices))]
	f.Add(encoded(f, one, runtime.ContentTypeProtobuf))
	f.Add([]byte("<html>"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var shapes pool.Shapes
		_ = readList(bytes.NewReader(data), ignore, func(raw []byte) error {
			var want resourceapi.ResourceSlice
			decodable := want.Unmarshal(raw) == nil
			p, err := shapes.Pack(raw)
			if err != nil {
				return nil
			}
			if got := p.ResourceSlice(); decodable && len(got.Spec.Devices) != len(want.Spec.Devices) {
				t.Errorf("%d of %d devices", len(got.Spec.Devices), len(want.Spec.Devices))
			}
			return nil
		})
	})
}
