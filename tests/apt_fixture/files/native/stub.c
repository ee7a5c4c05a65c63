/* gpu-image fixture: a library of the driver that has its name and nothing in it. */
const char gpu_image_fixture[] = "gpu-image fixture: a library without functions";
