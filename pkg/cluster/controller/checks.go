// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"gpu-dra-driver/pkg/cluster/read"
)

// Checks are checks for an administrator, after an installation and before the removal of the driver.
type Checks struct {
	Client            kubernetes.Interface
	Driver, Namespace string
	Webhook           bool
	// Port is the TCP port of the webhook in the controller's pods.
	Port int
	// Out receives the results.
	Out io.Writer
}

// Installation checks that the driver publishes devices, its classes exist, and its webhook refuses invalid claims.
// Until the context ends, it waits for devices and the webhook of a new installation.
func (c Checks) Installation(ctx context.Context) error {
	resources := c.Client.ResourceV1()
	_, err := resources.DeviceClasses().Get(ctx, c.Driver, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("DeviceClass %s does not exist; the chart creates it, unless deviceClasses.gpu.enabled "+
			"is false", c.Driver)
	case err != nil:
		return fmt.Errorf("get DeviceClass %s: %w", c.Driver, err)
	}
	fmt.Fprintf(c.Out, "DeviceClass %s exists\n", c.Driver)
	err = await(ctx, func(ctx context.Context) error {
		slices, err := resources.ResourceSlices().List(ctx,
			metav1.ListOptions{FieldSelector: "spec.driver=" + c.Driver})
		if err != nil {
			return err
		}
		nodes, devices := map[string]bool{}, 0
		for _, s := range slices.Items {
			if s.Spec.NodeName != nil {
				nodes[*s.Spec.NodeName] = true
			}
			devices += len(s.Spec.Devices)
		}
		if devices == 0 {
			return errors.New("no node publishes a device")
		}
		fmt.Fprintf(c.Out, "%d nodes publish %d devices\n", len(nodes), devices)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the devices of %s: %w; see the logs of the kubelet plugin's pods", c.Driver, err)
	}
	if !c.Webhook {
		return nil
	}
	if err := c.webhook(ctx); err != nil {
		return fmt.Errorf("check the webhook: %w. %s", err,
			cmp.Or(c.remedy(err), "See the logs of the controller's pods"))
	}
	fmt.Fprintln(c.Out, "The webhook refuses a claim with invalid parameters")
	return nil
}

// await repeats a check every second until it succeeds. After the context's end it returns the check's newest error,
// but not one that only reports that end.
func await(ctx context.Context, check func(context.Context) error) (last error) {
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := check(ctx)
		if err == nil || last == nil || ctx.Err() == nil {
			last = err
		}
		return err == nil, nil
	})
	return last
}

// errNoReview means that an invalid claim was accepted.
var errNoReview = errors.New("the API server accepts a claim with invalid parameters, without a review by the webhook")

// webhook creates an invalid claim as a dry run, until the webhook refuses it or the context ends.
func (c Checks) webhook(ctx context.Context) error {
	wrong := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "check-", Namespace: c.Namespace},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: c.Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			}}},
			Config: []resourceapi.DeviceClaimConfiguration{
				{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
					Driver: c.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"kind":"check"}`)},
				}}},
			},
		}},
	}
	claims := c.Client.ResourceV1().ResourceClaims(c.Namespace)
	return await(ctx, func(ctx context.Context) error {
		_, err := claims.Create(ctx, wrong, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case err == nil:
			return errNoReview
		case apierrors.IsInvalid(err) && strings.Contains(err.Error(), "opaque.parameters"):
			return nil
		}
		return err
	})
}

// remedy returns the remedy if an error of webhook shows that API servers do not reach the webhook; otherwise "".
func (c Checks) remedy(err error) string {
	text := err.Error()
	switch {
	case !errors.Is(err, errNoReview) &&
		!strings.Contains(text, fmt.Sprintf("failed calling webhook \"parameters.%s\"", c.Driver)):
		return ""
	case strings.Contains(text, "no endpoints available"):
		return "Look for the reason why no pod of the controller is ready"
	case strings.Contains(text, "x509:"):
		return "Look in the controller's log, or in that of cert-manager, for the reason why API servers do not " +
			"trust the certificate"
	case strings.Contains(text, NoClientCertificate):
		return "Give API servers a client certificate of the authority in webhook.tls.clientCA, or remove that value"
	}
	return fmt.Sprintf("Allow connections from the API servers to TCP port %d of the controller's pods in the "+
		"firewall; if API servers cannot reach addresses of pods at all, set webhook.hostNetwork=true "+
		"(docs/firewalls.md)", c.Port)
}

// Uninstall checks that no claim has devices of the driver, because such pods cannot end without it.
func (c Checks) Uninstall(ctx context.Context) error {
	resources := c.Client.ResourceV1()
	var holders []string
	more := 0
	for page, err := range read.Pages(ctx, metav1.ListOptions{}, resources.ResourceClaims(metav1.NamespaceAll).List) {
		if err != nil {
			return fmt.Errorf("list the claims: %w", err)
		}
		const shown = 20
		for _, claim := range page.Items {
			switch {
			case !c.holds(claim):
			case len(holders) == shown:
				more++
			default:
				holders = append(holders, "  "+claim.Namespace+"/"+claim.Name+users(claim))
			}
		}
	}
	if len(holders) == 0 {
		fmt.Fprintf(c.Out, "No claim has devices of %s\n", c.Driver)
		return nil
	}
	if more > 0 {
		holders = append(holders, fmt.Sprintf("  and %d more", more))
	}
	return fmt.Errorf("claims have devices of %s, and without the driver their pods cannot end:\n%s\nDelete these "+
		"pods first, or uninstall anyway with: helm uninstall --no-hooks",
		c.Driver, strings.Join(holders, "\n"))
}

func (c Checks) holds(claim resourceapi.ResourceClaim) bool {
	a := claim.Status.Allocation
	return a != nil && slices.ContainsFunc(a.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == c.Driver
	})
}

func users(claim resourceapi.ResourceClaim) string {
	var names []string
	for _, u := range claim.Status.ReservedFor {
		names = append(names, u.Name)
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}
