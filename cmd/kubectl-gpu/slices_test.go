// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// TestSlices_Formats_PrintAsKubectlDoes compares the list that is printed slice by slice with one that is printed at once.
func TestSlices_Formats_PrintAsKubectlDoes(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100", "n2": "l40s-4", "n3": "l40s-4"})
	whole := e.lists[slicesPath].(resourceapi.ResourceSliceList)
	foreign := whole.Items[0].DeepCopy()
	foreign.Name, foreign.Spec.Driver = "foreign", "other.example.com"
	whole.Items = append(whole.Items, *foreign)
	e.lists[slicesPath] = whole
	for _, c := range []struct {
		nodes []string
		none  bool
	}{{nil, false}, {[]string{"n2"}, false}, {[]string{"n1", "n2"}, false}, {[]string{"a,b=ñ"}, true}} {
		list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList"}}
		for _, s := range whole.Items {
			if s.Name == "foreign" || len(c.nodes) > 0 && !strings.Contains(strings.Join(c.nodes, " "), *s.Spec.NodeName) {
				continue
			}
			s.APIVersion, s.Kind = "resource.k8s.io/v1", "ResourceSlice"
			text, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			var u unstructured.Unstructured
			if err := u.UnmarshalJSON(text); err != nil {
				t.Fatal(err)
			}
			list.Items = append(list.Items, u)
		}
		if (len(list.Items) == 0) != c.none {
			t.Fatalf("nodes %v: %d slices", c.nodes, len(list.Items))
		}
		for format, printer := range map[string]printers.ResourcePrinter{
			"json": &printers.JSONPrinter{}, "yaml": &printers.YAMLPrinter{}, "name": &printers.NamePrinter{},
		} {
			var want bytes.Buffer
			if err := printer.PrintObj(list, &want); err != nil {
				t.Fatal(err)
			}
			code, out, errOut := e.kubectl(append([]string{"slices", "-o", format}, c.nodes...)...)
			if code != 0 || out != want.String() || errOut != "" {
				t.Errorf("slices %v -o %s: exit code %d, stderr %q, stdout:\n%.500s\nwant:\n%.500s", c.nodes, format, code, errOut, out, want.String())
			}
		}
	}
	code, out, _ := e.kubectl("slices", "-o", "jsonpath={range .items[*]}{.metadata.name} {end}")
	if code != 0 || strings.Count(out, " ") != len(whole.Items)-1 {
		t.Errorf("jsonpath: exit code %d, %s", code, out)
	}
}

func TestSlices_OtherDrivers_NotedInOrder(t *testing.T) {
	e := start(t, map[string]string{"n1": "l40s-4"})
	all := e.lists[slicesPath].(resourceapi.ResourceSliceList)
	want := ""
	for i := range 8 {
		s := all.Items[0].DeepCopy()
		s.Name, s.Spec.Driver = fmt.Sprint("foreign-", i), fmt.Sprintf("%d.example.com", i)
		all.Items = append(all.Items, *s)
		want += fmt.Sprintf("note: 1 slices of driver %s are not listed\n", s.Spec.Driver)
	}
	e.lists[slicesPath] = all
	if _, _, got := e.kubectl("slices"); got != want {
		t.Errorf("the notes are\n%s, want\n%s", got, want)
	}
}

func TestWhileProgressing_NoProgress_Ends(t *testing.T) {
	f := newFactory(genericiooptions.NewTestIOStreamsDiscard())
	ctx, progress, cancel := f.whileProgressing(t.Context(), time.Hour)
	progress()
	if ctx.Err() != nil {
		t.Error(ctx.Err())
	}
	cancel()
	ctx, _, cancel = f.whileProgressing(t.Context(), time.Millisecond)
	defer cancel()
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
		t.Errorf("the cause is %v", cause)
	}
}

// TestSlices_ServerHangs_SaysSo reads from a server that stops after the first slice.
func TestSlices_ServerHangs_SaysSo(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"})
	e.lists[slicesPath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	code, out, errOut := e.kubectl("slices", "-o", "json", "--request-timeout=50ms")
	if code != 1 || out != "" || !strings.Contains(errOut, "did not answer in time") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errOut)
	}
}
