// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleetserver

import (
	"encoding/binary"
	stdjson "encoding/json"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// format is a client's requested encoding.
type format int

const (
	protobuf format = iota
	json
)

// encoding is the form in which a client accepts objects.
type encoding struct {
	format format
	// partial requests metadata only.
	partial bool
}

func encodingOf(r *http.Request) encoding {
	first, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	e := encoding{format: json, partial: strings.Contains(first, "as=PartialObjectMetadata")}
	if strings.HasPrefix(first, runtime.ContentTypeProtobuf) {
		e.format = protobuf
	}
	return e
}

func (e encoding) contentType(watch bool) string {
	switch {
	case e.format == json:
		return runtime.ContentTypeJSON
	case watch:
		return runtime.ContentTypeProtobuf + ";stream=watch"
	}
	return runtime.ContentTypeProtobuf
}

// typeOf returns the type of a resource's objects in this encoding.
func (e encoding) typeOf(c *collection) metav1.TypeMeta {
	if e.partial {
		return metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}
	}
	return c.kind
}

// encode returns an object as JSON, or in protobuf without its envelope.
func encode(object any, f format) ([]byte, error) {
	if f == json {
		return stdjson.Marshal(object)
	}
	m, ok := object.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return nil, fmt.Errorf("encode %T: it has no form in protobuf", object)
	}
	return m.Marshal()
}

// envelope wraps an object in protobuf.
func envelope(raw []byte, kind metav1.TypeMeta) ([]byte, error) {
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: kind.APIVersion, Kind: kind.Kind}, Raw: raw}
	out, err := unknown.Marshal()
	return append([]byte("k8s\x00"), out...), err
}

// one returns a single object with its envelope.
func (e encoding) one(raw []byte, kind metav1.TypeMeta) ([]byte, error) {
	if e.format == json {
		return raw, nil
	}
	return envelope(raw, kind)
}

// event returns one event of a watch, with its separator.
func (e encoding) event(what string, raw []byte, kind metav1.TypeMeta) ([]byte, error) {
	object, err := e.one(raw, kind)
	if err != nil {
		return nil, err
	}
	if e.format == json {
		return stdjson.Marshal(metav1.WatchEvent{Type: what, Object: runtime.RawExtension{Raw: object}})
	}
	change := metav1.WatchEvent{Type: what, Object: runtime.RawExtension{Raw: object}}
	text, err := change.Marshal()
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...), err
}

// list returns a list of encoded objects.
func (e encoding) list(items [][]byte, meta metav1.ListMeta, kind metav1.TypeMeta) ([]byte, error) {
	kind.Kind += "List"
	if e.format == json {
		raw := make([]stdjson.RawMessage, len(items))
		for i, item := range items {
			raw[i] = item
		}
		return stdjson.Marshal(struct {
			metav1.TypeMeta `json:",inline"`
			metav1.ListMeta `json:"metadata"`
			Items           []stdjson.RawMessage `json:"items"`
		}{kind, meta, raw})
	}
	head, err := meta.Marshal()
	if err != nil {
		return nil, err
	}
	// All lists have their metadata first and their items second.
	text := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), head)
	for _, item := range items {
		text = protowire.AppendBytes(protowire.AppendTag(text, 2, protowire.BytesType), item)
	}
	return envelope(text, kind)
}
