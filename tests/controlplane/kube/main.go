// Command kube holds six Kubernetes commands in one program: the name it is called by
// chooses the command, so links called kube-apiserver, kubectl, ... point at it.
// Linking is the slow and memory-hungry step of a Kubernetes build; this way there is one.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	_ "time/tzdata" // CronJobs with a time zone work on machines without zone files.

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// command returns the Kubernetes command of that name, or nil. Only the chosen one is
// constructed: the constructors register flags and metrics that would collide.
func command(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kube-proxy":
		return proxy.NewProxyCommand()
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand()
	}
	return nil
}

func main() {
	name := filepath.Base(os.Args[0])
	cmd := command(name)
	if cmd == nil {
		fmt.Fprintf(os.Stderr, "%s: no such command; call this program by one of these names: %s\n", name,
			strings.Join([]string{"kube-apiserver", "kube-controller-manager", "kube-scheduler",
				"kube-proxy", "kubelet", "kubectl"}, ", "))
		os.Exit(2)
	}
	if name == "kubectl" {
		// kubectl words its own errors and exit codes; cli.Run would print its own over them.
		kubectlutil.CheckErr(cli.RunNoErrOutput(cmd))
		return
	}
	os.Exit(cli.Run(cmd))
}
