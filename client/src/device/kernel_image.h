// The compiled kernels.cu, of all GPU generations that the build names. Empty in a build without
// nvcc: conversions then run on the CPU.
#pragma once

#include "common/base/bytes.h"

namespace luwu::client::kernels {

ConstByteSpan KernelImage();

}  // namespace luwu::client::kernels
