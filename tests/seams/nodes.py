"""What tests reach behind the door of `nodes`: a name that moves is changed here only."""

from wattdock.metering.node_clock import LEAST_EXCHANGES
from wattdock.nodes import agent, head, link, messages, pairing, slurm_step
from wattdock.nodes.link import NodeLink
from wattdock_proto.v1 import node_pb2 as pb
from wattdock_proto.v1 import node_pb2_grpc

__all__ = ["LEAST_EXCHANGES", "NodeLink", "agent", "head", "link", "messages"]
__all__ += ["node_pb2_grpc", "pairing", "pb", "slurm_step"]
