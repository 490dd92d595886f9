// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// checkNode says which device node is missing and what makes it.
func (r *Root) checkNode(path, remedy string) error {
	seen := filepath.Join(r.o.DevRoot, path)
	var s unix.Stat_t
	if err := unix.Lstat(seen, &s); err != nil {
		return fmt.Errorf("%w: device node %s: %w; make it on the node with: %s", ErrIncomplete, seen, err, remedy)
	}
	if s.Mode&unix.S_IFMT != unix.S_IFCHR {
		return fmt.Errorf("%w: %s is not a character device; remove it and make it anew with: %s", ErrIncomplete, seen, remedy)
	}
	return nil
}

// logger passes nvcdi's messages on at a level that nobody runs with by default: it warns of every optional file.
type logger struct{}

const (
	warnings klog.Level = 6
	details  klog.Level = 8
)

func (logger) Errorf(f string, a ...any)   { klog.V(warnings).Infof("nvcdi: "+f, a...) }
func (logger) Warningf(f string, a ...any) { klog.V(warnings).Infof("nvcdi: "+f, a...) }
func (logger) Infof(f string, a ...any)    { klog.V(details).Infof("nvcdi: "+f, a...) }
func (logger) Debugf(f string, a ...any)   { klog.V(details).Infof("nvcdi: "+f, a...) }
func (logger) Tracef(f string, a ...any)   { klog.V(details).Infof("nvcdi: "+f, a...) }
