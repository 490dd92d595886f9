//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package beta

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/test/e2e/env"
)

// TestPrepare_ClaimAllocatedByHand_SpecWrittenAndRemoved allocates a claim and calls the plugin's socket, because the
// scheduler and kubelet of some of these clusters cannot.
func TestPrepare_ClaimAllocatedByHand_SpecWrittenAndRemoved(t *testing.T) {
	ctx := testContext(t)
	devices, err := cluster.Devices(ctx, "gpu")
	must(t, err)
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	claims, err := cluster.AllocatedClaims(ctx, nodes.Items[0].Name+"/gpu", []string{devices[0].Name}, false)
	must(t, err)
	api := cluster.Client.ResourceV1().ResourceClaims(env.ByHand)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(t, api.Delete(ctx, claims[0].Name, metav1.DeleteOptions{}))
	})
	// The cluster's directory holds the kubelet's directory. Each instance of the plugin has a socket in it.
	sockets, err := filepath.Glob(filepath.Join(cluster.Dir, "node/kubelet/plugins", env.Driver, "dra*.sock"))
	must(t, err)
	if len(sockets) != 1 {
		t.Fatalf("the plugin's sockets are %v", sockets)
	}
	// The whole path can exceed the length limit of a socket's path.
	dir, err := os.Open(filepath.Dir(sockets[0]))
	must(t, err)
	defer dir.Close()
	address := fmt.Sprintf("unix:///proc/self/fd/%d/%s", dir.Fd(), filepath.Base(sockets[0]))
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer connection.Close()
	plugin, uid := drapb.NewDRAPluginClient(connection), claims[0].Uid
	for range 2 { // A restarted kubelet prepares again.
		prepared, err := plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: claims}, grpc.WaitForReady(true))
		must(t, err)
		if one := prepared.Claims[uid]; one == nil || one.Error != "" || len(one.Devices) != 1 || len(one.Devices[0].CdiDeviceIds) == 0 {
			t.Fatalf("prepared: %v", prepared)
		}
		if found := cdiSpecs(ctx, t); len(found) != 1 {
			t.Errorf("CDI specs of one claim: %v", found)
		}
	}
	waitPrepared(ctx, t, env.ByHand, claims[0].Name)
	unprepared, err := plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claims})
	must(t, err)
	if one := unprepared.Claims[uid]; one == nil || one.Error != "" {
		t.Errorf("unprepared: %v", unprepared)
	}
	if found := cdiSpecs(ctx, t); len(found) != 0 {
		t.Errorf("CDI specs are left: %v", found)
	}
}

// waitPrepared waits until the status of a claim's device reports it as prepared.
func waitPrepared(ctx context.Context, t *testing.T, namespace, name string) {
	t.Helper()
	eventually(ctx, t, "the status of the device", func(ctx context.Context) (bool, string) {
		c, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || len(c.Status.Devices) != 1 {
			return false, fmt.Sprint("no status: ", err)
		}
		d := c.Status.Devices[0]
		return len(d.Conditions) == 1 && d.Conditions[0].Reason == "Prepared" && d.Data != nil && strings.Contains(string(d.Data.Raw), `"uuid":"GPU-`), fmt.Sprintf("%+v", d)
	})
}
