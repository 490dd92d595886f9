// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// staleAge is how old a socket must be to be taken for stale: one that is being made refuses connections too.
const staleAge = 30 * time.Second

// removeStale removes sockets whose instance was killed: their names hold the UID of a pod that never comes back, and
// the kubelet would try to register them for ever.
func removeStale(ctx context.Context, dataDir, registrarDir, driver string) {
	data, _ := filepath.Glob(filepath.Join(dataDir, "dra-*.sock")) // The pattern is well formed.
	registrar, _ := filepath.Glob(filepath.Join(registrarDir, "*-reg.sock"))
	for _, socket := range append(data, registrar...) {
		if filepath.Dir(socket) == filepath.Clean(registrarDir) && !strings.HasPrefix(filepath.Base(socket), driver+"-") {
			continue // Another driver's.
		}
		info, err := os.Lstat(socket)
		if err != nil || info.Mode()&os.ModeSocket == 0 || time.Since(info.ModTime()) < staleAge {
			continue
		}
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
		if err == nil {
			_ = conn.Close()
			continue
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			klog.FromContext(ctx).Info("Removing the socket of an instance that was killed", "socket", socket, "err", os.Remove(socket))
		}
	}
}
