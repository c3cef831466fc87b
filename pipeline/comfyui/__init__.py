"""Nodes for ComfyUI. ``tvae comfyui install`` puts a file into ComfyUI's folder that imports ``nodes`` from here: the
nodes are always those of the installed tvae.

ComfyUI's hooks were read and run at Comfy-Org/ComfyUI a125cd84 (October 2025) and in a fork's copy of April 2026
(alexisrolland/ComfyUI 34d7a5dc). No class of ComfyUI is changed: a wrapped VAE is a copy of the object, of a subclass.
"""
