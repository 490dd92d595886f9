// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io"
	"net"

	"gpu-dra-driver/test/cluster/internal/spec"
)

// forward passes connections to the API server. A socket stays in the network namespace of its creation, so a
// listener from outside connects the machine with the node.
func forward(l net.Listener) {
	for {
		outer, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer outer.Close()
			inner, err := net.Dial("tcp", "127.0.0.1:"+spec.APIServerPort)
			if err != nil {
				return
			}
			defer inner.Close()
			up := make(chan struct{})
			go func() {
				defer close(up)
				pass(inner, outer)
			}()
			pass(outer, inner)
			<-up
		}()
	}
}

// pass copies one direction and its end of file, so that each side may finish independently.
func pass(to, from net.Conn) {
	io.Copy(to, from)
	if c, ok := to.(*net.TCPConn); ok {
		c.CloseWrite()
	}
}
