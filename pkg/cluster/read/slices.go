// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"iter"
	"runtime"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// Slices iterates over the results of convert for the listed ResourceSlices, in their order. convert gets a slice in
// protobuf; several calls run at once, while the next page is requested. The iteration ends after an error.
func Slices[T any](
	ctx context.Context, client kubernetes.Interface, o metav1.ListOptions, convert func([]byte) (T, error),
) iter.Seq2[T, error] {
	type result struct {
		value T
		err   error
	}
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		results := make(chan chan result, 2*runtime.GOMAXPROCS(0))
		var last result
		go func() {
			defer close(results)
			last.err = slicePages(ctx, client, o, func(raw []byte) error {
				one := make(chan result, 1)
				select {
				case results <- one:
				case <-ctx.Done():
					return ctx.Err()
				}
				raw = bytes.Clone(raw)
				go func() {
					value, err := convert(raw)
					one <- result{value, err}
				}()
				return nil
			})
		}()
		for one := range results {
			if r := <-one; !yield(r.value, r.err) || r.err != nil {
				return
			}
		}
		if last.err != nil {
			yield(last.value, last.err)
		}
	}
}

// slicePages calls visit with each ResourceSlice in protobuf, which is valid until visit returns. It requests a page
// once the one before says where it begins.
func slicePages(
	ctx context.Context, client kubernetes.Interface, o metav1.ListOptions, visit func([]byte) error,
) error {
	type page struct {
		body io.ReadCloser
		err  error
	}
	rest := client.ResourceV1().RESTClient()
	request := func(o metav1.ListOptions) chan page {
		out := make(chan page, 1)
		go func() {
			body, err := rest.Get().Resource("resourceslices").VersionedParams(&o, scheme.ParameterCodec).Stream(ctx)
			out <- page{body, err}
		}()
		return out
	}
	o.Limit = cmp.Or(o.Limit, PageSize)
	for next := request(o); next != nil; {
		p := <-next
		if p.err != nil {
			return p.err
		}
		next = nil
		err := readList(p.body, func(m metav1.ListMeta) {
			if o.Continue = m.Continue; o.Continue != "" {
				next = request(o)
			}
		}, visit)
		_ = p.body.Close() // It was only read.
		if err != nil {
			return err // The caller ends the context, and so the request of the next page.
		}
	}
	return nil
}
