"""*compare*"""
import gradio as gr
def tab(at):
    gr.HTML("compare")
