# SPDX-License-Identifier: BSD-2-Clause
"""A library of NVIDIA's that has a static runtime inside and is opened without adding to the global
scope:
work_nvjpeg.py LIBNVJPEG. Decodes a picture many times over, prints a checksum."""
import base64
import ctypes
import hashlib
import os
import sys

WIDTH, HEIGHT, RGB_INTERLEAVED = 48, 32, 5
PICTURE = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4"
    "UG1RV19iZ2hnPk1xeXBkeFxlZ2P/2wBDARESEhgVGC8aGi9jQjhCY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2NjY2Nj"
    "Y2NjY2NjY2NjY2NjY2NjY2NjY2P/wAARCAAgADADASIAAhEBAxEB/8QAFwABAQEBAAAAAAAAAAAAAAAABAMFBv/EACYQ"
    "AAEDAwQCAQUAAAAAAAAAAAIAAREDBCESMVFhEyJxQUKBkbH/xAAZAQACAwEAAAAAAAAAAAAAAAADBQECBAb/xAAiEQAC"
    "AgEDBAMAAAAAAAAAAAABAwACIRIxYQQRUZETsfD/2gAMAwEAAhEDEQA/AOLC36Vwtuk2lb9JdK26Upr8kEvqO0zwtOlc"
    "LPpaDUhB4iX4VAomXXwjWqmh07niMVdQYIbNm3hvlVG1Bt3b8Jw2ojGrCuFFvtD9oVjQYNQD7+oyU/mAo2/SX4tAtDZf"
    "ZKt7fbCuNDVUfG2FnU40SNO5xOBW/MFRteWVxpO7wDQ3KZ4JLS2zbq40Y9RbP1dULRUaa4A9k+BGSnwIW4hiJfhXGgUS"
    "/qyYFvohmaS/isNvD59i4QS3Tjb953J4EZqfP//Z")


class Image(ctypes.Structure):
    _fields_ = [("channel", ctypes.c_void_p * 4), ("pitch", ctypes.c_size_t * 4)]


def must(rc, what):
    if rc:
        sys.exit(f"{what} gave {rc}")


def decode(nvjpeg, driver, handle):
    state, block = ctypes.c_void_p(), ctypes.c_uint64()
    pixels = ctypes.create_string_buffer(WIDTH * HEIGHT * 3)
    must(nvjpeg.nvjpegJpegStateCreate(handle, ctypes.byref(state)), "state")
    must(driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(len(pixels))), "alloc")
    image = Image()
    image.channel[0], image.pitch[0] = block.value, WIDTH * 3
    must(nvjpeg.nvjpegDecode(handle, state, PICTURE, ctypes.c_size_t(len(PICTURE)), RGB_INTERLEAVED,
                             ctypes.byref(image), None), "decode")
    must(driver.cuMemcpyDtoH_v2(pixels, block, ctypes.c_size_t(len(pixels))), "copy")
    must(driver.cuMemFree_v2(block), "free")
    must(nvjpeg.nvjpegJpegStateDestroy(state), "state's end")
    return hashlib.sha256(pixels.raw).hexdigest()


def main(library):
    nvjpeg = ctypes.CDLL(library, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p()
    must(nvjpeg.nvjpegCreateSimple(ctypes.byref(handle)), "create")
    print(*sorted({decode(nvjpeg, driver, handle) for _ in range(40)}))
    must(nvjpeg.nvjpegDestroy(handle), "destroy")


main(sys.argv[1])
