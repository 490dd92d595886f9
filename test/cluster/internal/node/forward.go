// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io"
	"net"

	"gpu-dra-driver/test/cluster/internal/spec"
)

// forward passes connections to the API server. A socket stays in the network namespace in which it was
// made, so a listener from outside, handed in, is the way from the machine into the node.
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

// pass copies one direction and passes its end on, so that each side may finish for itself.
func pass(to, from net.Conn) {
	io.Copy(to, from)
	if c, ok := to.(*net.TCPConn); ok {
		c.CloseWrite()
	}
}
