"""*speak*"""
import gradio as gr
def tab(at):
    gr.HTML("speak")
