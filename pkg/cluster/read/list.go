// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// protobufMagic begins objects in protobuf.
var protobufMagic = []byte("k8s\x00")

// maxObjectBytes is more than an API server stores in one object.
const maxObjectBytes = 16 << 20

// readList reads a ResourceSliceList from an API server, and holds one slice in memory at a time. begin receives the
// metadata, which come first. visit receives each slice in protobuf, valid until it returns. A list in JSON is read as
// a whole.
func readList(in io.Reader, begin func(metav1.ListMeta), visit func(slice []byte) error) error {
	r := bufio.NewReaderSize(in, 1<<16)
	if head, _ := r.Peek(len(protobufMagic)); !bytes.Equal(head, protobufMagic) {
		return readJSON(r, begin, visit)
	}
	_, _ = r.Discard(len(protobufMagic)) // They are in the buffer.
	found := false
	err := eachField(r, func(n protowire.Number, size uint64) error {
		const rawField = 2 // The list, in runtime.Unknown.
		if n != rawField {
			return skip(r, size)
		}
		found = true
		limited := &io.LimitedReader{R: r, N: int64(size)}
		if err := readItems(bufio.NewReader(limited), begin, visit); err != nil || limited.N == 0 {
			return err
		}
		return io.ErrUnexpectedEOF // The answer is cut.
	})
	if err == nil && !found {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("read a list of ResourceSlices: %w", err)
	}
	return nil
}

// readItems reads the list itself. The slices share a buffer.
func readItems(in *bufio.Reader, begin func(metav1.ListMeta), visit func(slice []byte) error) error {
	var one []byte
	return eachField(in, func(n protowire.Number, size uint64) error {
		if size > maxObjectBytes {
			return fmt.Errorf("an object has %d bytes", size)
		}
		one = slices.Grow(one[:0], int(size))[:size]
		if _, err := io.ReadFull(in, one); err != nil {
			return cut(err)
		}
		switch n {
		case 1:
			var meta metav1.ListMeta
			if err := meta.Unmarshal(one); err != nil {
				return err
			}
			begin(meta)
		case 2:
			return visit(one)
		}
		return nil
	})
}

// eachField calls f with the length of each field, until the end. f reads the contents.
func eachField(in *bufio.Reader, f func(n protowire.Number, size uint64) error) error {
	for {
		tag, err := binary.ReadUvarint(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		var size uint64
		n, kind := protowire.DecodeTag(tag)
		if err == nil && kind != protowire.BytesType {
			return fmt.Errorf("field %d has the wire type %d", n, kind)
		}
		if err == nil {
			size, err = binary.ReadUvarint(in)
		}
		if err != nil {
			return cut(err)
		}
		if err := f(n, size); err != nil {
			return err
		}
	}
}

// cut makes the end of the answer an error.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func skip(in io.Reader, size uint64) error {
	if size > maxObjectBytes {
		return fmt.Errorf("an object has %d bytes", size)
	}
	_, err := io.CopyN(io.Discard, in, int64(size))
	return cut(err)
}

func readJSON(r io.Reader, begin func(metav1.ListMeta), visit func([]byte) error) error {
	data, err := io.ReadAll(r)
	if err == nil && len(data) == 0 {
		err = io.ErrUnexpectedEOF // The decoder accepts it.
	}
	if err != nil {
		return err
	}
	list := resourceapi.ResourceSliceList{}
	if err := runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), data, &list); err != nil {
		return fmt.Errorf("the answer is not a list of ResourceSlices: %w", err)
	}
	begin(list.ListMeta)
	for i := range list.Items {
		raw, err := list.Items[i].Marshal()
		if err == nil {
			err = visit(raw)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
