"""Which GPUs the node has, what its driver can, and what the framework was compiled for.

The node's devices are read from the files of the kernel drivers; NVIDIA's driver library is asked through ctypes,
and only where the node has its devices.
"""

import ctypes
import glob
import os
import re
import sys
from typing import Any, Dict, Optional

from .machine import lines, listed, text
from .record import attempt

NVIDIA = "/proc/driver/nvidia"
KFD = "/sys/class/kfd/kfd/topology/nodes"
NAME_LENGTH = 256
KERNEL_MODULE = r"Module\s+(?:for \S+\s+)?(\d[\d.]+)"
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76


class Uuid(ctypes.Structure):
    """CUuuid of NVIDIA's driver interface."""

    _fields_ = [("bytes", ctypes.c_ubyte * 16)]

    def __str__(self) -> str:
        digits = "".join("%02x" % byte for byte in self.bytes)
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def node_gpus() -> Dict[str, Any]:
    """The GPUs that the kernel knows, whether or not this rank may use them, and the kernel driver's version."""
    return {
        "nvidia": [nvidia_gpu(name) for name in listed(NVIDIA + "/gpus")],
        "nvidia_files": len(glob.glob("/dev/nvidia[0-9]*")),
        "nvidia_driver": first_match(KERNEL_MODULE, text(NVIDIA + "/version")),
        "mig": bool(glob.glob(NVIDIA + "/capabilities/gpu*/mig/gi*")),
        "amd": [gpu for gpu in (amd_gpu(name) for name in listed(KFD)) if gpu],
        "amd_files": os.path.exists("/dev/kfd"),
        "amd_driver": text("/sys/module/amdgpu/version") or None,
    }


def nvidia_gpu(folder: str) -> Dict[str, Optional[str]]:
    fields = dict(line.split(":", 1) for line in lines("%s/gpus/%s/information" % (NVIDIA, folder)) if ":" in line)
    return {"name": fields.get("Model", "").strip(), "uuid": fields.get("GPU UUID", "").strip() or None}


def amd_gpu(folder: str) -> Optional[Dict[str, str]]:
    """A node of the KFD topology as a GPU; gfx_target_version 90010 is gfx90a. None for a node that is a CPU."""
    properties = dict(line.split(None, 1) for line in lines("%s/%s/properties" % (KFD, folder)) if " " in line)
    if int(properties.get("simd_count", 0)) == 0:
        return None
    target = int(properties.get("gfx_target_version", 0))
    name = "gfx%d%x%x" % (target // 10000, target // 100 % 100, target % 100)
    return {"name": name, "uuid": "%016x" % int(properties.get("unique_id", 0))}


def first_match(pattern: str, where: str) -> Optional[str]:
    match = re.search(pattern, where)
    return match.group(1) if match else None


def has_nvidia() -> bool:
    return bool(os.path.isdir(NVIDIA) or glob.glob("/dev/nvidia[0-9]*"))


def gpu_driver() -> Dict[str, Any]:
    """Return what NVIDIA's driver library answers: the CUDA version it supports, the status of cuInit, its devices.

    CUDA versions are as the library has them, 12040 for 12.4. Raises OSError where there is no such library.
    """
    if not has_nvidia():
        return {"present": False}
    cuda = ctypes.CDLL("libcuda.so.1")
    version = ctypes.c_int(0)
    status = cuda.cuDriverGetVersion(ctypes.byref(version))
    if status == 0:
        status = cuda.cuInit(0)
    facts = {"present": True, "cuda": version.value, "status": status, "devices": []}  # type: Dict[str, Any]
    if status == 0:
        number = ctypes.c_int(0)
        cuda.cuDeviceGetCount(ctypes.byref(number))
        facts["devices"] = [driver_device(cuda, index) for index in range(number.value)]
    return facts


def driver_device(cuda: Any, index: int) -> Dict[str, Any]:
    """A visible device: name, UUID, compute capability such as 9.0, and whether it is a slice of a GPU (MIG)."""
    handle, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(NAME_LENGTH)
    cuda.cuDeviceGetName(name, NAME_LENGTH, handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), CAPABILITY_MINOR, handle)
    whole, own = Uuid(), Uuid()
    cuda.cuDeviceGetUuid(ctypes.byref(whole), handle)
    getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)(ctypes.byref(own), handle)
    mig = str(own) != str(whole)
    return {
        "name": name.value.decode(errors="replace"),
        "uuid": ("MIG-%s" if mig else "GPU-%s") % own,
        "capability": "%d.%d" % (major.value, minor.value),
        "mig": mig,
    }


def compiled(framework: str) -> Dict[str, Any]:
    """Return what the framework was compiled for: CUDA or ROCm, architectures (sm_90, gfx90a), its own NCCL."""
    return {"torch": compiled_torch, "tensorflow": compiled_tensorflow}[framework](sys.modules[framework])


def compiled_torch(torch: Any) -> Dict[str, Any]:
    cuda = getattr(torch.version, "cuda", None)
    hip = getattr(torch.version, "hip", None)
    own = {"cuda": cuda, "rocm": hip, "architectures": [], "nccl": None}  # type: Dict[str, Any]
    if cuda or hip:
        own["architectures"] = attempt(lambda: torch._C._cuda_getArchFlags().split())
        own["nccl"] = attempt(lambda: dotted(torch.cuda.nccl.version()))
    abi = getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", None)
    return dict(own, cxx11_abi=None if abi is None else int(abi))


def compiled_tensorflow(tf: Any) -> Dict[str, Any]:
    build = tf.sysconfig.get_build_info()
    return {
        "cuda": build.get("cuda_version") if build.get("is_cuda_build") else None,
        "rocm": build.get("rocm_version", "unknown") if build.get("is_rocm_build") else None,
        "architectures": list(build.get("cuda_compute_capabilities", [])),
        "nccl": None,
        "cxx11_abi": getattr(tf.sysconfig, "CXX11_ABI_FLAG", None),
    }


def dotted(version: Any) -> str:
    """NCCL's version as PyTorch tells it: a tuple, or in old releases a number."""
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)


EARLY = (node_gpus, gpu_driver)
