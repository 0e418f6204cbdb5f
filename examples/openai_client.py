"""Talk to `polydraft serve` with OpenAI's client: an image, speech, and a question about the image.

    polydraft serve &
python openai_client.py http://127.0.0.1:8000/v1
"""

import base64
import sys

from openai import OpenAI


def main(url: str = "http://127.0.0.1:8000/v1") -> None:
    client = OpenAI(base_url=url, api_key="unused")
    print("models:", ", ".join(model.id for model in client.models.list()))

    image = client.images.generate(model="tiny-image", prompt="two frogs on a blue background", extra_body={"seed": 7})
    encoded = image.data[0].b64_json
    with open("frogs.png", "wb") as file:
        file.write(base64.b64decode(encoded))

    speech = client.audio.speech.create(model="tiny-speech", voice="rms", input="It rains.", response_format="wav")
    speech.write_to_file("rain.wav")

    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
    question = {"type": "text", "text": "How many frogs are there?"}
    answer = client.chat.completions.create(
        model="tiny-vlm", messages=[{"role": "user", "content": [picture, question]}], max_tokens=40
    )
    print(question["text"], answer.choices[0].message.content)


if __name__ == "__main__":
    main(*sys.argv[1:])
