"""What the command line does, for scripts: open VAEs and latents, encode and decode files.

::

    from tvae.pipeline import decode, encode, load_latents, load_vae

    encode(["photos", "clip.mp4"], "latents", vae="models/sdxl-vae")
    found = load_latents("latents/a.jpg.safetensors")
    pixels = load_vae("models/sdxl-vae", device="cuda").decode(found.tensor.unsqueeze(0).cuda()).sample
    decode("latents", "pictures")
"""
