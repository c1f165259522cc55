#include "client/src/device/kernel_image.h"

#if defined(LUWU_KERNEL_IMAGE)
asm(".section .rodata\n"
    ".balign 64\n"
    ".hidden luwu_kernel_image_begin\n"
    ".hidden luwu_kernel_image_end\n"
    ".global luwu_kernel_image_begin\n"
    ".global luwu_kernel_image_end\n"
    "luwu_kernel_image_begin:\n"
    ".incbin \"" LUWU_KERNEL_IMAGE
    "\"\n"
    "luwu_kernel_image_end:\n"
    ".byte 0\n"
    ".previous\n");
extern "C" {
extern const std::byte luwu_kernel_image_begin[];
extern const std::byte luwu_kernel_image_end[];
}
#endif

namespace luwu::client::kernels {

ConstByteSpan KernelImage() {
#if defined(LUWU_KERNEL_IMAGE)
  return {luwu_kernel_image_begin, luwu_kernel_image_end};
#else
  return {};
#endif
}

}  // namespace luwu::client::kernels
