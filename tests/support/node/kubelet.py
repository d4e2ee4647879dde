"""A kubelet's pod-resources API: a gRPC server on a Unix socket, of grpcio, with messages of protobuf's own library.

The messages are those of v1/api.proto of k8s.io/kubelet/pkg/apis/podresources as far as they are needed, and fields of each
kind of encoding that a reader has to skip.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

METHOD = "List"
SERVICE = "v1.PodResourcesLister"
_PROTO = {
    "ListPodResourcesRequest": "",
    "ListPodResourcesResponse": "1 pod_resources PodResources*",
    "PodResources": "1 name string, 2 namespace string, 3 containers ContainerResources*, 9 weight double",
    "ContainerResources": (
        "1 name string, 2 devices ContainerDevices*, 3 cpu_ids int64*, 4 memory ContainerMemory*, "
        "5 dynamic_resources DynamicResource*, 9 flags fixed32"
    ),
    "ContainerDevices": "1 resource_name string, 2 device_ids string*, 3 topology TopologyInfo",
    "ContainerMemory": "1 memory_type string, 2 size uint64, 3 topology TopologyInfo",
    "DynamicResource": "2 claim_name string, 3 claim_namespace string, 4 claim_resources ClaimResource*",
    "ClaimResource": (
        "1 cdi_devices CDIDevice*, 2 driver_name string, 3 pool_name string, 4 device_name string, 5 share_id string"
    ),
    "CDIDevice": "1 name string",
    "TopologyInfo": "1 nodes NUMANode*",
    "NUMANode": "1 ID int64",
}
_Field = descriptor_pb2.FieldDescriptorProto


def _messages() -> dict[str, type]:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in _PROTO.items():
        message = file.message_type.add(name=name)
        for entry in filter(None, fields.split(", ")):
            number, field_name, kind = entry.split()
            label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=int(number), label=label)
            kind = kind.rstrip("*")
            if kind in _PROTO:
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".v1.{kind}"
            else:
                field.type = getattr(_Field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in _PROTO
    }


Messages = _messages()


def response(pods: dict[tuple[str, str], dict[str, dict[str, list[str]]]]):
    """Of {(namespace, pod): {container: {resource: [device]}}}; devices of claims are in the resource claim:DRIVER."""
    answer = Messages["ListPodResourcesResponse"]()
    for (namespace, name), containers in pods.items():
        pod = answer.pod_resources.add(name=name, namespace=namespace, weight=0.5)
        for container, resources in containers.items():
            one = pod.containers.add(name=container, cpu_ids=[1, 2, 300], flags=7)
            one.memory.add(memory_type="memory", size=1 << 40)
            for resource, devices in resources.items():
                if resource.startswith("claim:"):
                    claim = one.dynamic_resources.add(claim_name="gpus", claim_namespace=namespace)
                    for device in devices:
                        driver = resource.removeprefix("claim:")
                        claimed = claim.claim_resources.add(
                            driver_name=driver, pool_name="node-1", device_name=device
                        )
                        claimed.cdi_devices.add(name=f"k8s.{driver}/claim=1f-{device}")
                    continue
                given = one.devices.add(resource_name=resource, device_ids=devices)
                given.topology.nodes.add(ID=1)
    return answer


class Kubelet:
    """Serves `answer`, a message or a function of the call's context, until it is left."""

    def __init__(self, path: str, answer):
        self.path, self.answer, self.calls = path, answer, 0
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=Messages["ListPodResourcesRequest"].FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        service = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix://{path}")

    def _list(self, request, context):
        self.calls += 1
        return self.answer(context) if callable(self.answer) else self.answer

    def __enter__(self) -> Kubelet:
        self._server.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.stop(None).wait()
