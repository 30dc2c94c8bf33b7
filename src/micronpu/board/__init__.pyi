from micronpu.board.gdb import BoardError as BoardError
from micronpu.board.machine import Machine as Machine
from micronpu.board.model import BoardModel as BoardModel
from micronpu.board.model import read_model as read_model
from micronpu.board.npu import Npu as Npu
from micronpu.board.npu import Run as Run
from micronpu.board.session import VirtualBoard as VirtualBoard
