// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"reflect"
	"time"
)

// fits reports whether an object takes at most so many bytes of memory. The size of its encoding would not do: an empty
// element of a list takes 2 bytes there, and up to a kilobyte in memory. It looks at no more than the limit.
func fits(object any, limit int) bool {
	m := meter{limit}
	m.add(reflect.ValueOf(object))
	return m.left >= 0
}

// meter counts down the bytes that values take, without what they share with the caller.
type meter struct{ left int }

var location = reflect.TypeFor[*time.Location]()

func (m *meter) add(v reflect.Value) {
	if m.left < 0 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		m.left -= v.Len()
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() || v.Type() == location { // All times have the same few locations.
			return
		}
		m.left -= int(v.Elem().Type().Size())
		m.add(v.Elem())
	case reflect.Slice:
		m.left -= v.Cap() * int(v.Type().Elem().Size())
		m.elements(v)
	case reflect.Array:
		m.elements(v)
	case reflect.Map:
		const mapGroup, mapHeaderBytes = 8, 48 // A map has room for eight entries, and then is at least half full.
		if v.IsNil() {
			return
		}
		m.left -= mapHeaderBytes + max(mapGroup, 2*v.Len())*int(v.Type().Key().Size()+v.Type().Elem().Size())
		for each := v.MapRange(); m.left >= 0 && each.Next(); {
			m.add(each.Key())
			m.add(each.Value())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			m.add(v.Field(i))
		}
	}
}

func (m *meter) elements(v reflect.Value) {
	switch v.Type().Elem().Kind() {
	case reflect.String, reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		for i := 0; i < v.Len() && m.left >= 0; i++ {
			m.add(v.Index(i))
		}
	}
}
